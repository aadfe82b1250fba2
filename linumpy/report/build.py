"""Build the report page from all parts of a run."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.core.log import logger, progress
from linumpy.geometry.orientation import parse_orientation
from linumpy.io.anatomy import stated_orientation
from linumpy.io.previews import shrink
from linumpy.io.sample_checks import is_lines
from linumpy.quality.accuracy_metric import AT_LEAST
from linumpy.quality.run import Run, TileRegistration
from linumpy.records.timing import Task, find_trace, read_trace, tasks_of
from linumpy.report.collect import RunInfo, SliceRecord, read_info, slice_records
from linumpy.report.comparisons import comparisons
from linumpy.report.findings import NOTE, SEVERITIES, WORST_NAMED, find_issues, summary_of
from linumpy.report.intensity_figures import attenuation_plot, bias_plot, response_plot, seam_plot
from linumpy.report.labels import counted, label
from linumpy.report.links import atlas_links, picture_links
from linumpy.report.model_figures import field_plot
from linumpy.report.pictures import brain_frames, data_url, jpeg, slice_images, stored_picture
from linumpy.report.plots import Plot
from linumpy.report.run_section import (
    SECTION,
    WALL,
    make_environment,
    marked,
    render_section,
    wall_label,
)
from linumpy.report.slice_figures import overlap_plots, projection, shift_plots
from linumpy.report.tile_figures import confidence_plot, stage_axes_plots, tile_plots
from linumpy.report.verdicts import read_verdicts

TEMPLATE = "report.html.j2"
MANY_SLICES = 40
_ATLAS_NBYTES = 200_000
_PACKED_NBYTES = 1_200_000
_LARGE_PLOT = 200_000
"""Characters of a drawing from which on it is packed: that of a slice of some hundred tiles."""


def build_report(run_path: Path | str, info: Mapping[str, Any] | None = None) -> str:
    """Return the report of a run as one HTML page that refers to nothing outside itself.

    Parameters
    ----------
    run_path
        Output folder of the pipeline; any part of it may be absent.
    info
        Data of the workflow alone: see `collect.read_info`.

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
    code = _orientation(run, known)
    images, one_contrast = slice_images(slices, _side_px(len(slices)), code)
    style, script = (_asset(f"report.{kind}") for kind in ("css", "js"))
    return environment.get_template(TEMPLATE).render(
        info=known,
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        style=Markup(style),
        script=Markup(script),
        script_hash=_hash(script),
        slices=slices,
        findings=findings,
        summary=summary_of(findings),
        worst=[f for f in findings if f.severity != NOTE or f.stated][:WORST_NAMED],
        counts={s: sum(f.severity == s for f in findings) for s in SEVERITIES},
        accuracy=_accuracy_rows(run.accuracy),
        orientation=code,
        brain=_brain(run, code),
        comparisons=comparisons(run),
        cards=[{"record": s, "picture": images.get(s.slice_id), "tags": _tags(s)} for s in slices],
        one_contrast=one_contrast,
        verdicts=read_verdicts(run.path),
        tiles=_tile_section(run, slices),
        microscope=_microscope_section(run),
        alignment=_alignment_section(run),
        atlas=_atlas_section(run),
        links=picture_links(run.path),
        wall=Markup(marked(WALL, wall_label(record, tasks))),
        run=Markup(marked(SECTION, render_section(record, tasks))),
    )


def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """Return the hash that the page's policy allows its one script by."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")


def _orientation(run: Run, known: RunInfo) -> str:
    """Return where z, axis 1 and axis 2 of the brain point; empty when nothing states it."""
    found = (run.model("align_to_ras") or {}).get("orientation")
    code = found or known.params.get("ras_input_orientation") or ""
    if code:
        try:
            return parse_orientation(str(code))
        except InputError as error:
            logger.warning("the report shows no orientation: %s", error)
            return ""
    if run.brain_path is None:
        return ""
    from linumpy.io.omezarr import open_image

    return stated_orientation(open_image(run.brain_path))


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


def _brain(run: Run, code: str) -> dict[str, Any] | None:
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
        "views": brain_frames(image, code),
        "orientation": code,
        "shape": " × ".join(str(n) for n in shape),
        "voxel": " × ".join(f"{v:g}" for v in voxel),
        "extent": " × ".join(f"{n * v / 1000:.2f}" for n, v in zip(shape, voxel, strict=True)),
        "levels": ", ".join(
            " × ".join(f"{v:g}" for v in scale) if len(set(scale)) > 1 else f"{scale[0]:g}"
            for scale in image.level_scales_um
        ),
        "state": data_url("application/json", json.dumps(state, indent=1).encode()),
    }


def _side_px(n_slices: int) -> int:
    return 420 if n_slices <= MANY_SLICES else 300


def _tags(record: SliceRecord) -> list[tuple[str, str]]:
    """Return short remarks on a slice, each with the kind that gives it its look."""
    tags = []
    if not record.present:
        tags.append(("warning" if record.gap_is_told else "problem", "no data"))
    if record.left_out:
        tags.append(("warning", f"left out: {record.left_out}"))
    if record.interpolated:
        tags.append(("warning", f"interpolated ({record.interpolated})"))
    if record.not_interpolated:
        kind = "note" if record.covered else "warning"
        tags.append((kind, f"gap: {record.not_interpolated.replace('_', ' ')}"))
    if record.rehomed:
        tags.append(("warning", "stage glitch"))
    if record.turned:
        tags.append(("warning", "block rotated"))
    if record.missing_tiles:
        tags.append(("warning", f"{_count(len(record.missing_tiles), 'tile')} missing"))
    if record.prior_only:
        tags.append(("note", f"{_count(record.prior_only, 'tile')} held by the stage"))
    flagged = sum(not all(map(is_lines, words)) for _, words in record.flags)
    if flagged:
        tags.append(("warning", f"{_count(flagged, 'tile')} with flags"))
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
        f"held by the stage alone{_known_to(list(registrations.values()))}",
        "plots": [_shown(confidence_plot(registrations)), _shown(seam_plot(registrations))],
        **_slices_of_tiles(registrations),
        "axes": _stage_axes(run, chosen),
    }


def _known_to(registrations: Sequence[TileRegistration]) -> str:
    """Return how well positions are known, of the worst slice: as overlaps tell, and do not."""
    bounds_um = [b for r in registrations if (b := r.position_bound_um) is not None]
    stretches = [b for r in registrations if (b := r.stretch_bound) is not None]
    text = f"; positions to {max(bounds_um):.2g} um" if bounds_um else ""
    if text and stretches:
        text += f", all distances along axis 1 together to {100 * max(stretches):.2g} %"
    return f"{text} (95 %)" if text else ""


def _slices_of_tiles(registrations: Mapping[int, TileRegistration]) -> dict[str, Any]:
    """Return the plots of each slice: the first in view, others packed, the worst of too many."""
    first, *others = sorted(registrations)
    found: dict[int, Any] = {first: [_shown(plot) for plot in tile_plots(registrations[first])]}
    left = _PACKED_NBYTES
    others.sort(key=lambda i: _accepted_share(registrations[i]))
    for slice_id in progress(others, len(others), "plots of slices"):
        packed = _packed([plot.render() for plot in tile_plots(registrations[slice_id])])
        if len(packed) > left:
            break
        found[slice_id] = packed
        left -= len(packed)
    return {
        "slices": [(f"z{i:02d}", shown) for i, shown in sorted(found.items())],
        "left_out": len(registrations) - len(found),
    }


def _accepted_share(registration: TileRegistration) -> float:
    pairs = registration.pairs
    return sum(pair.accepted for pair in pairs) / max(1, len(pairs))


def _shown(plot: Plot) -> dict[str, Any]:
    """Return what the templates show of a plot; a large one is packed."""
    shown = plot.render()
    return {"packed": _packed([shown])} if len(shown["svg"]) > _LARGE_PLOT else shown


def _packed(plots: Sequence[Mapping[str, Any]]) -> str:
    """Return plots as text that the page unfolds when asked."""
    macros: Any = make_environment().get_template("macros.html.j2").module
    page = "".join(macros.plot(shown) for shown in plots)
    return base64.b64encode(gzip.compress(page.encode("utf-8"), mtime=0)).decode("ascii")


def _stage_axes(run: Run, slice_id: int) -> list[dict[str, Any]]:
    path = run.slice_paths.get(slice_id)
    picture = extent = None
    stage_to_array = "+x,+y"
    if path is not None:
        from linumpy.io.omezarr import open_image

        stage_to_array = str(open_image(path).attributes.get("stage_to_array", stage_to_array))
        mean, pixel, corner = projection(path, 1600)
        sides = [n * v for n, v in zip(mean.shape, pixel, strict=True)]
        extent = (corner[1], corner[1] + sides[1], corner[0], corner[0] + sides[0])
        picture = shrink(mean, 400)[0]
    registration = run.tile_registrations[slice_id]
    plots = stage_axes_plots(registration, stage_to_array, picture, extent)
    return [_shown(plot) for plot in plots]


def _microscope_section(run: Run) -> dict[str, Any]:
    focal, flat = run.model("detect_focal_curvature"), run.model("fix_illumination_3d")
    response = run.model("compensate_psf")
    attenuation = run.slice_models("compensate_attenuation", arrays=False)
    bias = run.model("correct_bias_field")
    plots, facts, absent = [], [], []
    if focal is not None and "surface_um" in focal:
        field = focal["surface_um"]
        plots.append(
            field_plot("focal_surface", "Focal surface", field, focal["voxel_um"], "µm deeper")
        )
        tiles = _count(focal["n_tiles"], "tile")
        facts.append(f"focal surface spans {float(np.ptp(field)):.0f} µm, from {tiles}")
    if flat is not None and "flat_field" in flat:
        field = flat["flat_field"]
        plots.append(
            field_plot("flat_field", "Flat field", field, flat["voxel_um"], "amplitude factor")
        )
        span = f"{float(np.min(field)):.2f}–{float(np.max(field)):.2f}"
        facts.append(f"flat field {span}, from {_count(flat['n_tiles'], 'tile')}")
    if not plots:
        absent.append("No focal surface and no flat field were learned.")
    if response is not None:
        plots.append(response_plot(response))
        if response.get("focus_um") is not None:
            facts.append(
                f"focus {response['focus_um']:.0f} µm below the top of what is imaged, Rayleigh "
                f"length {response['rayleigh_um']:.0f} µm"
            )
    if attenuation:
        plots.append(attenuation_plot(attenuation))
        found = [float(model["tissue_mu_per_mm"]) for model in attenuation.values()]
        facts.append(f"tissue attenuates {np.median(found):.2f} per mm, median over slices")
    if response is None and not attenuation:
        absent.append("Axial response and attenuation were not compensated.")
    if bias is not None:
        plots.append(bias_plot(bias))
        low, high = bias["field_range"]
        mode = bias["mode"].replace("_", " ")
        facts.append(f"bias field: {mode}; the fields span {low:.2f} to {high:.2f}")
    return {
        "plots": [_shown(plot) for plot in plots],
        "facts": "; ".join(facts),
        "absent": absent,
    }


def _alignment_section(run: Run) -> dict[str, Any]:
    turns = run.model("register_slices") or {}
    plots = shift_plots(run.table("shifts_xy.csv"), run.slice_registration, turns.get("slices", ()))
    absent = []
    if not plots:
        absent.append("There are no motor shifts and no registration of slices.")
    if run.stack is not None and run.stack.get("slices"):
        plots += overlap_plots(run.stack, run.table("z_matches.csv"))
    else:
        absent.append("The slices were not stacked.")
    return {"plots": [_shown(plot) for plot in plots], "absent": absent}


def _atlas_section(run: Run) -> dict[str, Any] | None:
    model = run.model("align_to_ras")
    if model is None:
        return None
    preview = next(iter(sorted((run.path / "previews").glob("*_ras*.png"))), None)
    return {
        "picture": None if preview is None else _atlas_picture(preview),
        "rows": {
            "Atlas": model["atlas"],
            "The brain's axes (z, axis 1, axis 2) point to": model["orientation"]
            + (" (mirrored)" if model["mirrored"] else ""),
            "Rotated beyond that": f"{model['tilt_deg']:.1f}°",
            "Size in the atlas over size": " × ".join(f"{s:.3f}" for s in model["scale"]),
            "Mutual information": f"{model['likeness']:.3f}",
            "Next best orientation less alike by": "not tried"
            if model["margin"] is None
            else f"{100 * model['margin']:.0f} %",
            "Tissue within the atlas": f"{100 * model['overlap']:.0f} %",
        },
        "links": atlas_links(run.path),
    }


def _atlas_picture(path: Path) -> dict[str, Any]:
    pixels = np.asarray(stored_picture(path).convert("RGB"))
    return {
        "src": jpeg(pixels, _ATLAS_NBYTES),
        "width": pixels.shape[1],
        "height": pixels.shape[0],
        "bar": None,
        "top": "",
    }


def _tasks(run: Run, info: RunInfo) -> list[Task]:
    """Return the tasks that are known: of the record, of a trace alone, or of the workflow."""
    trace = None if "trace" in info.record else find_trace(run.path / "pipeline_info")
    return tasks_of(info.record.get("tasks", ())) if trace is None else read_trace(trace)


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _number(value: float | None, digits: int = 1) -> str:
    """Write a number for a table, a dash when there is none."""
    return "–" if value is None else f"{value:.{digits}f}"
