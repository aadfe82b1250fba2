"""Fill gaps between files: one gap and one manifest at a time, then merge them into the table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.device import CPU, Device
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.io.table_rows import parse_slice_id
from linumpy.io.tables import SliceConfig, stamp
from linumpy.stage_params.gaps import InterpolateParams
from linumpy.store.untrusted import TABLE_NBYTES, quoted, read_bounded

if TYPE_CHECKING:
    from linumpy.brain.gaps.interpolate_missing_slice import InterpolationReport
    from linumpy.brain.gaps.match import PlaneStack

MANIFEST_COLUMNS = (
    "slice_id",
    "method",
    "method_used",
    "fallback_reason",
    "interpolation_failed",
    "output_path",
)


@dataclass(frozen=True)
class ManifestEntry:
    """A gap's line: what was tried, and what came of it.

    Attributes
    ----------
    method_used
        Empty when nothing was written.
    fallback_reason
        Why nothing was written; empty when something was.
    output_path
        Name of the slice volume; empty when there is none.
    """

    slice_id: int
    method: str
    method_used: str
    fallback_reason: str
    interpolation_failed: bool
    output_path: str

    @classmethod
    def of(cls, report: InterpolationReport, output: Path) -> ManifestEntry:
        """Sum up a report."""
        return cls(
            report.slice_id,
            report.method,
            report.method_used,
            report.fallback_reason,
            report.failed,
            output.name if report.method_used else "",
        )


def interpolate_gap(
    before: Path,
    after: Path,
    output: Path,
    params: InterpolateParams,
    *,
    slice_id: int,
    registration: Path,
    shifts: Path | None = None,
    diagnostics: Path | None = None,
    preview: Path | None = None,
    manifest: Path | None = None,
    overwrite: bool = False,
    device: Device = CPU,
) -> InterpolationReport:
    """Fill the gap of one missing slice from the volumes of its neighbours.

    Parameters
    ----------
    before, after
        Slice volumes of the neighbours.
    output
        Volume to write, if anything is missing and can be made.
    slice_id
        The missing slice.
    registration
        ``register_slices.json``.
    shifts
        The table of shifts that registration had.
    diagnostics, preview, manifest
        JSON of the report, PNG, and one-line CSV to write; None for none.
    """
    from linumpy.brain.gaps.interpolate_missing_slice import WIDE_GAP, interpolate_missing_slice
    from linumpy.brain.slice_folder import load_slices
    from linumpy.brain.slice_registration import SliceRegistration
    from linumpy.io.models import load_model, model_place, save_model
    from linumpy.io.omezarr import open_image

    model = load_model(*model_place(registration), SliceRegistration)
    (upper, lower), voxel_um, _ = load_slices([before, after], shifts, device=device)
    if any(abs(a - b) > 1e-6 * b for a, b in zip(model.voxel_um, voxel_um, strict=True)):
        raise InputError(
            f"{registration}: made for voxels of {model.voxel_um} um, the slices have {voxel_um}"
        )
    report, planes = interpolate_missing_slice(
        upper,
        lower,
        slice_id,
        model,
        output,
        params,
        attributes=open_image(before).attributes,
        overwrite=overwrite,
    )
    if report.fallback_reason == WIDE_GAP:
        logger.warning(
            "slices %s are missing beside each other: their gap of %.0f um stays",
            ", ".join(f"z{i:02d}" for i in range(upper.slice_id + 1, lower.slice_id)),
            report.gap_um,
        )
    elif report.failed:
        logger.warning(
            "slice z%02d is not interpolated (%s): a gap of %.0f um stays",
            slice_id,
            report.fallback_reason,
            report.gap_um,
        )
    if diagnostics is not None:
        save_model(*model_place(diagnostics), report)
    if preview is not None and planes is not None:
        made = output if report.method_used else None
        write_preview(preview, planes, made, report, overwrite=overwrite)
    if manifest is not None:
        write_manifest(manifest, [ManifestEntry.of(report, output)], overwrite=overwrite)
    return report


def write_manifest(
    path: Path, entries: Iterable[ManifestEntry], *, overwrite: bool = False
) -> None:
    """Write manifest lines as CSV."""
    from linumpy.store.atomic import write_text

    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(MANIFEST_COLUMNS)
    for entry in entries:
        cells = [getattr(entry, name) for name in MANIFEST_COLUMNS]
        cells[0] = f"{entry.slice_id:02d}"
        cells[4] = "true" if entry.interpolation_failed else "false"
        writer.writerow(cells)
    write_text(path, text.getvalue(), overwrite=overwrite)


def read_manifest(path: Path) -> list[ManifestEntry]:
    """Read manifest lines.

    Raises
    ------
    InputError
        When the file cannot be read or a line is not one of a manifest; names file and line.
    """
    try:
        text = read_bounded(path, TABLE_NBYTES).decode("utf-8")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a manifest ({error})") from error
    entries = []
    for number, row in enumerate(rows, start=2):
        missing = [name for name in MANIFEST_COLUMNS if row.get(name) is None]
        if missing:
            raise InputError(f"{path}, line {number}: lacks {', '.join(missing)} of a manifest")
        failed = row["interpolation_failed"].strip().lower()
        try:
            slice_id = parse_slice_id(row["slice_id"])
        except (ValueError, OverflowError):
            raise InputError(
                f"{path}, line {number}: slice_id is {quoted(row['slice_id'])}, expected a slice id"
            ) from None
        if failed not in ("true", "false"):
            raise InputError(
                f"{path}, line {number}: interpolation_failed is {quoted(failed)}, "
                "expected true or false"
            )
        entries.append(
            ManifestEntry(
                slice_id,
                row["method"],
                row["method_used"],
                row["fallback_reason"],
                failed == "true",
                row["output_path"],
            )
        )
    return entries


def stamp_interpolations(
    rows: Sequence[SliceConfig], entries: Iterable[ManifestEntry]
) -> tuple[SliceConfig, ...]:
    """Write the outcome of the gaps into the table.

    A slice that was never imaged gets a row that is not in use: its replacement is its
    neighbours' tissue, not its own.

    Raises
    ------
    InputError
        When two entries are of one slice.
    """
    seen: set[int] = set()
    stamped = tuple(rows)
    for entry in entries:
        if entry.slice_id in seen:
            raise InputError(f"two manifests of slice z{entry.slice_id:02d}, expected one")
        seen.add(entry.slice_id)
        known = next((row for row in rows if row.slice_id == entry.slice_id), None)
        reason = "missing" if known is None else known.exclude_reason
        stamped = stamp(
            stamped,
            entry.slice_id,
            exclude_reason=reason,
            interpolated=bool(entry.method_used),
            interpolation_failed=entry.interpolation_failed,
            interpolation_method_used=entry.method_used,
            interpolation_fallback_reason=entry.fallback_reason,
        )
    return stamped


def finalise_interpolation(
    config_in: Path, fragments: Sequence[Path], config_out: Path, *, overwrite: bool = False
) -> None:
    """Merge manifests into a table: ``slice_config.csv``; without any it is the same table.

    A row that leaves its slice out without a reason gets one: it was decided by hand.

    Parameters
    ----------
    config_in, config_out
        Table to read, and table to write.
    fragments
        Manifests, or folders of them (``*_manifest.csv``).
    """
    from linumpy.io.tables import read_slice_config, write_slice_config
    from linumpy.mosaic.slice_config import with_reason

    paths: list[Path] = []
    for place in fragments:
        paths += sorted(place.glob("*_manifest.csv")) if place.is_dir() else [place]
    entries = [entry for path in paths for entry in read_manifest(path)]
    decided = [with_reason(row) for row in read_slice_config(config_in)]
    rows = stamp_interpolations(decided, entries)
    write_slice_config(config_out, rows, overwrite=overwrite)


def write_preview(
    path: Path,
    planes: tuple[PlaneStack, PlaneStack],
    made: Path | None,
    report: InterpolationReport,
    *,
    overwrite: bool = False,
) -> None:
    """Draw the end of the upper neighbour, the middle of what was made, and the lower one's top."""
    from linumpy.core.style import INK, new_figure
    from linumpy.io.omezarr import open_image
    from linumpy.io.previews import figure_png, positive_window, shrink
    from linumpy.store.atomic import atomic_path

    pictures: list[tuple[str, Any]] = [("above the gap", planes[0].data[-1])]
    if made is not None:
        array = open_image(made).array
        middle = np.asarray(array[array.shape[0] // 2])
        side = max(planes[0].data.shape[1:])
        pictures.append((f"interpolated ({report.method_used})", shrink(middle, side)[0]))
    pictures.append(("below the gap", planes[1].data[0]))
    top = max(positive_window(picture, 99.5) for _, picture in pictures)
    figure = new_figure(3.2 * len(pictures), 3.6)
    for axes, (title, picture) in zip(
        np.atleast_1d(figure.subplots(1, len(pictures))), pictures, strict=True
    ):
        axes.imshow(picture, cmap="gray", vmin=0, vmax=top)
        axes.set_title(title, fontsize=9, color=INK)
        axes.set_axis_off()
    reason = f": not interpolated, {report.fallback_reason}" if report.failed else ""
    figure.suptitle(f"Slice z{report.slice_id:02d}{reason}", fontsize=10, color=INK)
    with atomic_path(path, overwrite=overwrite) as partial:
        partial.write_bytes(figure_png(figure))
