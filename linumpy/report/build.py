"""Build the report page from all parts of a run."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.io.previews import figure_png, picture_png, shrink, slice_picture, three_plane_figure
from linumpy.quality.figure import AT_LEAST
from linumpy.quality.run import Run
from linumpy.records.timing import Task, find_trace, read_trace, tasks_of
from linumpy.report.collect import RunInfo, SliceRecord, read_info, slice_records
from linumpy.report.findings import PROBLEM, SEVERITIES, WORST_NAMED, find_issues, summary_of
from linumpy.report.intensity_figures import axial_figure, bias_figure, seam_figure
from linumpy.report.labels import counted, label
from linumpy.report.links import atlas_links, picture_links
from linumpy.report.model_figures import field_figure
from linumpy.report.run_section import (
    SECTION,
    WALL,
    make_environment,
    marked,
    render_section,
    wall_label,
)
from linumpy.report.slice_figures import overlap_figure, projection, shift_figure
from linumpy.report.tile_figures import confidence_figure, stage_axes_figure, tile_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = "report.html.j2"
MANY_SLICES = 40
_PLOT_COLOURS = 128
_MOST_PIXELS = 1 << 25


def build_report(run_path: Path | str, info: Mapping[str, Any] | None = None) -> str:
    """Return the report of a run as one HTML page that refers to nothing outside itself.

    Parameters
    ----------
    run_path
        Output folder of the pipeline; any part of it may be absent.
    info
        What only the workflow knows: see `collect.read_info`.

    Raises
    ------
    InputError
        When the folder is missing, or a file in it cannot be understood.
    """
    from markupsafe import Markup

    run = Run(run_path)
    known = read_info(run, info)
    slices = slice_records(run)
    tasks = _tasks(run, known)
    record = {**known.record, "params": known.params, "versions": known.versions}
    environment = make_environment()
    environment.filters["number"] = _number
    findings = find_issues(run, slices)
    return environment.get_template(TEMPLATE).render(
        info=known,
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        slices=slices,
        findings=findings,
        summary=summary_of(findings),
        worst=[f for f in findings if f.severity == PROBLEM][:WORST_NAMED],
        counts={s: sum(f.severity == s for f in findings) for s in SEVERITIES},
        accuracy=_accuracy_rows(run.accuracy),
        brain=_brain(run),
        cards=_slice_cards(slices),
        tiles=_tile_section(run, slices),
        fields=_field_section(run),
        axial=_axial_section(run),
        bias=_bias_section(run),
        atlas=_atlas_section(run),
        links=picture_links(run.path),
        shifts=_shift_section(run),
        overlap=_overlap_section(run),
        wall=Markup(marked(WALL, wall_label(record, tasks))),
        run=Markup(marked(SECTION, render_section(record, tasks))),
    )


def _accuracy_rows(figures: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    rows = []
    for name, figure in (figures or {}).items():
        target, value = figure.get("target"), figure.get("value")
        result = "none" if target is None else {True: "pass", False: "miss"}.get(
            figure.get("passed"), "unknown"
        )  # fmt: skip
        sign = "≥" if figure.get("comparison") == AT_LEAST else "≤"
        rows.append(
            {
                "label": label(name),
                "value": None if value is None else f"{value:.3g}",
                "unit": figure.get("unit", ""),
                "target": None if target is None else f"{sign} {target:g}",
                "n": f"{figure.get('n', 0):,} {counted(name)}".replace(",", "\u202f").strip(),
                "result": result,
                "reason": (figure.get("details") or {}).get("reason", ""),
            }
        )
    return sorted(rows, key=lambda row: row["result"] == "none")


def _brain(run: Run) -> dict[str, Any] | None:
    if run.brain_path is None:
        return None
    from linumpy.io.omezarr import open_image
    from linumpy.io.viewer import contrast_limits, neuroglancer_state

    image = open_image(run.brain_path)
    name = run.brain_path.name
    shape, voxel = image.array.shape, image.voxel_um
    state = neuroglancer_state(name, image, limits=contrast_limits(image))
    return {
        "name": name,
        "command_name": shlex.quote(name),
        "nifti_name": shlex.quote(name.removesuffix(".ome.zarr") + ".nii.gz"),
        "picture": _embed(figure_png(three_plane_figure(image), colours=256)),
        "shape": " × ".join(str(n) for n in shape),
        "voxel": " × ".join(f"{v:g}" for v in voxel),
        "extent": " × ".join(f"{n * v / 1000:.2f}" for n, v in zip(shape, voxel, strict=True)),
        "levels": ", ".join(
            " × ".join(f"{v:g}" for v in scale) if len(set(scale)) > 1 else f"{scale[0]:g}"
            for scale in image.level_scales_um
        ),
        "state": _data_url("application/json", json.dumps(state, indent=1).encode()),
    }


def _slice_cards(slices: list[SliceRecord]) -> list[dict[str, Any]]:
    side = 420 if len(slices) <= MANY_SLICES else 240
    return [
        {"record": record, "picture": _slice_thumbnail(record, side), "tags": _tags(record)}
        for record in slices
    ]


def stored_picture(path: Path) -> Any:
    """Return a preview as a grey Pillow picture.

    Raises
    ------
    InputError
        When it cannot be read, or is too large to be one.
    """
    from PIL import Image as Pillow

    try:
        with Pillow.open(path, formats=("PNG",)) as stored:
            n_pixels = stored.width * stored.height
            if n_pixels <= _MOST_PIXELS:
                return stored.convert("L")
    except Pillow.DecompressionBombError:
        raise InputError(f"{path}: too many pixels, expected at most {_MOST_PIXELS}") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a picture ({error})") from error
    raise InputError(f"{path}: {n_pixels} pixels, expected at most {_MOST_PIXELS}")


def _slice_thumbnail(record: SliceRecord, side_px: int) -> str | None:
    """Return a slice's picture: its preview made smaller, else its volume's depth mean."""
    from PIL import Image as Pillow

    if record.preview_path is not None:
        picture = stored_picture(record.preview_path)
        picture.thumbnail((side_px, side_px))
    elif record.volume_path is not None:
        mean, pixel, _ = projection(record.volume_path, 4 * side_px)
        picture = Pillow.fromarray(slice_picture(mean, pixel, side_px))
    else:
        return None
    return _embed(picture_png(picture))


def _tags(record: SliceRecord) -> list[tuple[str, str]]:
    """Return short remarks on a slice, each with the kind that gives it its look."""
    tags = []
    if not record.present:
        tags.append(("problem", "no data"))
    if record.left_out:
        tags.append(("attention", f"left out: {record.left_out}"))
    if record.interpolated:
        tags.append(("attention", f"interpolated ({record.interpolated})"))
    if record.not_interpolated:
        kind = "note" if record.covered else "attention"
        tags.append((kind, f"gap: {record.not_interpolated.replace('_', ' ')}"))
    if record.rehomed:
        tags.append(("attention", "stage glitch"))
    if record.missing_tiles:
        tags.append(("attention", f"{_count(len(record.missing_tiles), 'tile')} missing"))
    if record.prior_only:
        tags.append(("note", f"{_count(record.prior_only, 'tile')} held by the stage"))
    if record.flags:
        tags.append(("attention", f"{_count(len(record.flags), 'tile')} with flags"))
    return tags


def _tile_section(run: Run, slices: list[SliceRecord]) -> dict[str, Any] | None:
    registrations = run.tile_registrations
    if not registrations:
        return None
    chosen = sorted(registrations)[len(registrations) // 2]
    if run.slice_registration is not None and run.slice_registration.reference_id in registrations:
        chosen = run.slice_registration.reference_id
    tiles = sum(len(r.tiles) for r in registrations.values())
    return {
        "summary": f"{_count(tiles, 'tile')} in {_count(len(registrations), 'slice')}, "
        f"{sum(s.pairs_accepted for s in slices)} of {sum(s.pairs_total for s in slices)} "
        f"pairs accepted, {_count(sum(s.prior_only for s in slices), 'tile')} "
        "held by the stage alone",
        "confidence": _plot(confidence_figure(registrations)),
        "seams": _plot(seam_figure(registrations)),
        "slices": [(f"z{i:02d}", _plot(tile_figure(r))) for i, r in sorted(registrations.items())],
        "axes_slice": f"z{chosen:02d}",
        "axes": _stage_axes(run, chosen),
    }


def _stage_axes(run: Run, slice_id: int) -> str:
    path = run.slice_paths.get(slice_id)
    picture = extent = None
    stage_to_array = "+x,+y"
    if path is not None:
        from linumpy.io.omezarr import open_image

        stage_to_array = str(open_image(path).attributes.get("stage_to_array", stage_to_array))
        mean, pixel, corner = projection(path, 1600)
        sides = [n * v for n, v in zip(mean.shape, pixel, strict=True)]
        extent = (corner[1], corner[1] + sides[1], corner[0], corner[0] + sides[0])
        picture = shrink(mean, 700)[0]
    registration = run.tile_registrations[slice_id]
    figure = stage_axes_figure(registration, stage_to_array, picture, extent)
    return _plot(figure, colours=256)


def _field_section(run: Run) -> dict[str, Any] | None:
    focal, flat = run.model("detect_focal_curvature"), run.model("fix_illumination_3d")
    if focal is None and flat is None:
        return None
    facts = []
    if focal is not None and "surface_um" in focal:
        span = float(np.ptp(focal["surface_um"]))
        facts.append(f"focal surface spans {span:.0f} µm, from {_count(focal['n_tiles'], 'tile')}")
    if flat is not None and "flat_field" in flat:
        low, high = float(np.min(flat["flat_field"])), float(np.max(flat["flat_field"]))
        facts.append(f"flat field {low:.2f}–{high:.2f}, from {_count(flat['n_tiles'], 'tile')}")
    return {"picture": _plot(field_figure(focal, flat), colours=None), "facts": "; ".join(facts)}


def _shift_section(run: Run) -> str | None:
    motor = run.table("shifts_xy.csv")
    if not motor and run.slice_registration is None:
        return None
    turns = run.model("register_slices") or {}
    return _plot(shift_figure(motor, run.slice_registration, turns.get("slices", ())))


def _axial_section(run: Run) -> dict[str, Any] | None:
    response = run.model("compensate_psf")
    attenuation = run.slice_models("compensate_attenuation")
    if response is None and not attenuation:
        return None
    facts = []
    if response is not None and response.get("focus_um") is not None:
        facts.append(
            f"focus {response['focus_um']:.0f} µm below the top of what is imaged, Rayleigh length "
            f"{response['rayleigh_um']:.0f} µm"
        )
    if attenuation:
        found = [float(model["tissue_mu_per_mm"]) for model in attenuation.values()]
        facts.append(f"tissue attenuates {np.median(found):.2f} per mm, median over slices")
    return {"picture": _plot(axial_figure(response, attenuation)), "facts": "; ".join(facts)}


def _bias_section(run: Run) -> dict[str, Any] | None:
    model = run.model("correct_bias_field")
    if model is None:
        return None
    low, high = model["field_range"]
    return {
        "picture": _plot(bias_figure(model)),
        "facts": f"{model['mode'].replace('_', ' ')}; the fields span {low:.2f} to {high:.2f}",
    }


def _atlas_section(run: Run) -> dict[str, Any] | None:
    model = run.model("align_to_ras")
    if model is None:
        return None
    preview = next(iter(sorted((run.path / "previews").glob("*_ras*.png"))), None)
    return {
        "picture": None if preview is None else _embed(preview.read_bytes()),
        "rows": {
            "Atlas": model["atlas"],
            "The brain's axes (z, axis 1, axis 2) point to": model["orientation"]
            + (" (mirrored)" if model["mirrored"] else ""),
            "Turned beyond that": f"{model['tilt_deg']:.1f}°",
            "Size in the atlas over size": " × ".join(f"{s:.3f}" for s in model["scale"]),
            "Mutual information": f"{model['likeness']:.3f}",
            "Next best orientation less alike by": "not tried"
            if model["margin"] is None
            else f"{100 * model['margin']:.0f} %",
            "Tissue within the atlas": f"{100 * model['overlap']:.0f} %",
        },
        "links": atlas_links(run.path),
    }


def _overlap_section(run: Run) -> str | None:
    if run.stack is None or not run.stack.get("slices"):
        return None
    return _plot(overlap_figure(run.stack, run.table("z_matches.csv")))


def _tasks(run: Run, info: RunInfo) -> list[Task]:
    """Return the tasks that are known: of the record, of a trace alone, or of the workflow."""
    trace = None if "trace" in info.record else find_trace(run.path / "pipeline_info")
    return tasks_of(info.record.get("tasks", ())) if trace is None else read_trace(trace)


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _number(value: float | None, digits: int = 1) -> str:
    """Write a number for a table, a dash when there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def _plot(figure: Figure, colours: int | None = _PLOT_COLOURS) -> str:
    return _embed(figure_png(figure, colours=colours))


def _embed(png: bytes) -> str:
    return _data_url("image/png", png)


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
