"""Collect what the report shows from a run's folder; absent parts are left out."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from linumpy import __version__
from linumpy.core.errors import InputError
from linumpy.intensity.tissue import TISSUE_CONTRAST
from linumpy.io.models import read_json
from linumpy.metrics.both_sides import foreign_bodies_of
from linumpy.quality.run import PRIOR_ONLY, Run, TileRegistration, numbered
from linumpy.records.launches import page_record
from linumpy.tiles.positions import MeasuredPair

PACKAGES = ("numpy", "scipy", "zarr", "numcodecs", "cupy-cuda12x", "cupy-cuda13x")
# Of the median brightness of overlaps that match: agarose is several times darker than tissue.
_TISSUE_SHARE = 0.5
_FALSE = ("", "false", "0", "no", "n", "f")


@dataclass(frozen=True)
class SliceRecord:
    """All that is known of one slice.

    Attributes
    ----------
    used
        Whether the slice configuration lets it into the brain.
    interface_um
        Depth of the cut face below the top of the imaged range.
    tilt_um
        Fall of the cut face across the slice.
    offset_um, rotation_deg
        Registered offset (z, axis 1, axis 2), and rotation.
    quality
        Score from 0 to 1 beside its neighbours.
    rehomed
        Whether the stage lost its zero before this slice.
    turned
        Whether all slices are rotated from this one on.
    interpolated, not_interpolated
        What became of the gap where a slice is missing: the method that filled it, or why none did.
    covered
        Whether no method was needed, as a neighbour shows the tissue.
    mu_per_mm
        Attenuation of its tissue.
    n_tiles, prior_only
        Tiles imaged, and those of them that no pair holds.
    alone_in_tissue
        Grid indices of those of the latter that show tissue.
    missing_tiles
        Grid indices of holes.
    flags
        What befell single tiles: (``ix,iy``, words).
    """

    slice_id: int
    used: bool = True
    exclude_reason: str = ""
    notes: str = ""
    interface_um: float | None = None
    tilt_um: float | None = None
    offset_um: tuple[float, float, float] | None = None
    rotation_deg: float | None = None
    quality: float | None = None
    rehomed: bool = False
    turned: bool = False
    interpolated: str = ""
    not_interpolated: str = ""
    covered: bool = False
    mu_per_mm: float | None = None
    n_tiles: int | None = None
    prior_only: int = 0
    alone_in_tissue: tuple[tuple[int, int], ...] = ()
    missing_tiles: tuple[tuple[int, int], ...] = ()
    flags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    pairs_accepted: int = 0
    pairs_total: int = 0
    joined_pairs: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    volume_path: Path | None = None
    preview_path: Path | None = None

    @property
    def name(self) -> str:
        """The slice as it is printed."""
        return f"z{self.slice_id:02d}"

    @property
    def gap_is_told(self) -> bool:
        """Whether it is known what became of the gap that the slice leaves."""
        return bool(self.interpolated or self.not_interpolated)

    @property
    def left_out(self) -> str:
        """Why a user kept the slice out of the brain; empty where none did."""
        reason = self.exclude_reason or self.notes
        if self.used or (self.gap_is_told and not self.present):
            return ""
        return (reason or "no reason given").replace("_", " ")

    @property
    def present(self) -> bool:
        """Whether anything of the slice was found."""
        return self.volume_path is not None or self.n_tiles is not None


@dataclass(frozen=True)
class RunInfo:
    """Data of a run that only the workflow has."""

    subject: str
    params: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)


def load_info(source: str | None) -> dict[str, Any]:
    """Read the workflow's record of a run from a file, or from standard input for ``-``.

    Raises
    ------
    InputError
        When it is no JSON object.
    """
    if source is None:
        return {}
    if source != "-":
        return read_json(source)
    try:
        value = json.loads(sys.stdin.read())
    except json.JSONDecodeError as error:
        raise InputError(f"--info -: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise InputError("--info -: expected a JSON object")
    return value


def read_info(run: Run, given: Mapping[str, Any] | None) -> RunInfo:
    """Gather subject, parameters and versions, and all else that is recorded.

    Parameters
    ----------
    given
        Object with any of ``subject, command_line, params, versions, nextflow`` (its version)
        and ``tasks`` (``process, tag, seconds`` each); what it lacks is taken from the record of
        the run (`linumpy.records.launches`), or from ``pipeline_info/run.json``.
    """
    path = run.path / "pipeline_info" / "run.json"
    told = read_json(path) if path.exists() else page_record(run.path) or {}
    record = {**told, **(given or {})}
    subject = record.get("subject")
    if not subject and run.brain_path is not None:
        subject = run.brain_path.name.removesuffix(".ome.zarr")
    versions = {
        "linumpy": __version__,
        "Python": sys.version.split()[0],
        **{name: found for name in PACKAGES if (found := _version(name)) is not None},
    }
    if "environment_of" in record:
        # Stated by the tasks that did the work, not by the one that makes the report.
        versions = {}
    if record.get("nextflow"):
        versions["Nextflow"] = str(record["nextflow"])
    versions.update({str(k): str(v) for k, v in (record.get("versions") or {}).items()})
    return RunInfo(
        subject=str(subject or run.path.resolve().name),
        params=record.get("params") or {},
        versions=versions,
        record=record,
    )


def slice_records(run: Run) -> list[SliceRecord]:
    """Return one record a slice, gaps in the ids included, in order."""
    config = {_slice_id(row): row for row in run.table("slice_config.csv")}
    config.pop(None, None)
    ids = {*run.slice_ids, *(i for i in config if i is not None), *run.grid_paths}
    if not ids:
        return []
    previews = _previews(run.path / "previews")
    known = _Known(run)
    return [
        _slice_record(run, known, i, config.get(i, {}), previews.get(i))
        for i in range(min(ids), max(ids) + 1)
    ]


class _Known:
    """What models of all slices say of single ones."""

    def __init__(self, run: Run) -> None:
        placed = run.slice_registration
        self.offset_um: dict[int, tuple[float, float, float]] = {}
        if placed is not None:
            for slice_id, (z, first, second) in placed.offset_um.items():
                self.offset_um[slice_id] = (float(z), float(first), float(second))
        registration = run.model("register_slices") or {}
        self.rotation_deg: dict[int, float] = {
            int(s["slice_id"]): float(s["rotation_deg"])
            for s in registration.get("slices", ())
            if s.get("rotation_deg") is not None
        }
        self.jumps = {int(i) for i in registration.get("jumps", ())}
        self.turned = {int(i) for i in registration.get("turned", ())}
        self.attenuation = run.slice_models("compensate_attenuation", arrays=False)
        self.compared = (run.model("assess_slice_quality") or {}).get("pairs", ())


def _slice_record(
    run: Run, known: _Known, slice_id: int, config: Mapping[str, str], preview: Path | None
) -> SliceRecord:
    tiles = run.tile_registrations.get(slice_id)
    crop = run.crops.get(slice_id, {})
    attributes = _volume_attributes(run.slice_paths.get(slice_id))
    reasons = [config.get(key, "") for key in ("exclude_reason", "auto_exclude_reason")]
    missing = tuple((int(a), int(b)) for a, b in attributes.get("missing_tiles", ()))
    holes = {f"{a},{b}" for a, b in missing}
    tilt = crop.get("tilt_um")
    made = _is_true(config, "interpolated")
    failed = _is_true(config, "interpolation_failed")
    why = config.get("interpolation_fallback_reason") or ""
    return SliceRecord(
        slice_id=slice_id,
        used=(config.get("use") or "true").strip().lower() not in _FALSE
        and not _is_true(config, "auto_excluded"),
        exclude_reason=", ".join(dict.fromkeys(reason for reason in reasons if reason)),
        notes=config.get("notes") or "",
        interface_um=crop.get("interface_um", attributes.get("interface_um")),
        tilt_um=None if tilt is None else float(math.hypot(*tilt)),
        offset_um=known.offset_um.get(slice_id),
        rotation_deg=known.rotation_deg.get(slice_id),
        quality=_score(config.get("quality_score")),
        rehomed=_is_true(config, "rehomed") or slice_id in known.jumps,
        turned=slice_id in known.turned,
        interpolated=(config.get("interpolation_method_used") or "yes") if made else "",
        not_interpolated="" if made else why or ("?" if failed else ""),
        covered=bool(why) and not failed and not made,
        mu_per_mm=known.attenuation.get(slice_id, {}).get("tissue_mu_per_mm"),
        n_tiles=None if tiles is None else len(tiles.tiles),
        prior_only=0 if tiles is None else sum(t.component == PRIOR_ONLY for t in tiles.tiles),
        alone_in_tissue=() if tiles is None else _alone_in_tissue(tiles),
        missing_tiles=missing,
        flags=_tile_flags(
            attributes.get("flags", {}),
            holes,
            tiles,
            reflection=crop.get("reflections", ()),
            shadow=foreign_bodies_of(known.compared, slice_id),
        ),
        pairs_accepted=0 if tiles is None else sum(p.accepted for p in tiles.pairs),
        pairs_total=0 if tiles is None else len(tiles.pairs),
        joined_pairs=_joined_pairs(tiles.pairs if tiles else []),
        volume_path=run.slice_paths.get(slice_id),
        preview_path=preview,
    )


def _tile_flags(
    told: Mapping[str, Sequence[str]],
    holes: set[str],
    registration: TileRegistration | None,
    **bodies: Sequence[Mapping[str, Any]],
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the flags of imaged tiles, and the names of `bodies` for those that show one."""
    flags = {str(k): [str(w) for w in words] for k, words in told.items() if k not in holes}
    fov_um = registration.fov_um if registration else ()
    for tile in registration.tiles if registration else ():
        for word, found in bodies.items():
            if any(_shows(tile.corner_um, fov_um, body) for body in found):
                flags.setdefault(f"{tile.ix},{tile.iy}", []).append(word)
    return tuple((tile, tuple(words)) for tile, words in sorted(flags.items()))


def _shows(corner_um: Sequence[float], fov_um: Sequence[float], body: Mapping[str, Any]) -> bool:
    """Whether a tile reaches into a body, taken for a disc of its area."""
    beyond = [
        max(low - centre, centre - low - side, 0.0)
        for low, side, centre in zip(corner_um, fov_um, body["centre_um"], strict=True)
    ]
    return math.hypot(*beyond) < math.sqrt(body["area_um2"] / math.pi)


def _alone_in_tissue(registration: TileRegistration) -> tuple[tuple[int, int], ...]:
    """Return the tiles that no pair holds and that are about as bright as tiles that pairs hold.

    Bare agarose matches nothing, and need not; nor has the only tile of a slice a neighbour.
    """
    if len(registration.tiles) == 1:
        return ()
    bright: dict[tuple[int, int], float] = {}
    held = []
    for pair in registration.pairs:
        for index, mean in ((pair.a, pair.overlap_mean_a), (pair.b, pair.overlap_mean_b)):
            value = math.inf if mean is None else mean
            bright[index] = max(bright.get(index, 0.0), value)
            if pair.accepted and mean is not None:
                held.append(mean)
    limit = _TISSUE_SHARE * statistics.median(held) if held else 0.0
    dark = min(bright.values(), default=0.0)
    # Deep in noise agarose is not much darker than tissue, but it shows beside tissue.
    if held and max(held) >= TISSUE_CONTRAST * dark:
        limit = max(limit, (dark + statistics.median(held)) / 2)
    alone = [tile.index for tile in registration.tiles if tile.component == PRIOR_ONLY]
    return tuple(index for index in alone if bright.get(index, math.inf) >= limit)


def _is_true(row: Mapping[str, str], name: str) -> bool:
    return (row.get(name) or "").strip().lower() not in _FALSE


def _score(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _previews(folder: Path) -> dict[int, Path]:
    """Return images of slices by slice id."""
    return numbered(folder, r"slice_z(\d+)\.png")


def _joined_pairs(pairs: Sequence[MeasuredPair]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Count pairs of tiles that both match a neighbour, along axis 1 and axis 2.

    Returns
    -------
    Accepted ones, and all. Tiles of bare agarose match nothing, and are not counted.
    """
    joined = {index for pair in pairs if pair.accepted for index in (pair.a, pair.b)}
    counts = [[0, 0], [0, 0]]
    for pair in pairs:
        if pair.a in joined and pair.b in joined:
            axis = int(abs(pair.expected_um[1]) > abs(pair.expected_um[0]))
            counts[axis][0] += pair.accepted
            counts[axis][1] += 1
    first, second = ((accepted, total) for accepted, total in counts)
    return first, second


def _volume_attributes(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    from linumpy.io.omezarr import open_image

    return open_image(path).attributes


def _slice_id(row: Mapping[str, str]) -> int | None:
    try:
        return int(float(row.get("slice_id") or ""))
    except ValueError:
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def id_ranges(ids: Iterable[int]) -> str:
    """Write slice ids shortly: ``z00–z03, z07``."""
    runs: list[list[int]] = []
    for slice_id in sorted(ids):
        if runs and slice_id == runs[-1][1] + 1:
            runs[-1][1] = slice_id
        else:
            runs.append([slice_id, slice_id])
    return ", ".join(f"z{a:02d}" if a == b else f"z{a:02d}–z{b:02d}" for a, b in runs)
