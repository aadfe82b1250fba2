"""Pages of the documentation that are made from the code at build time."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import linumpy
from linumpy.metrics.limits import LIMITS
from linumpy.metrics.stages import READERS
from linumpy.parameters_page import parameters_page
from linumpy.stage_params.declaration import Declaration
from linumpy.stage_params.declared import STAGES

ROOT = Path(__file__).resolve().parents[1]

SHARED = {"help", "version", "verbose", "overwrite", "use_gpu", "gpu_memory", "gpu_batch",
          "gpu_tasks", "gpu_wait", "gpu_count"}  # fmt: skip
"""Destinations of the options that `linumpy.cli.make_parser` adds."""

MODELS = {
    "detect_focal_curvature": ("geometry.detect_focal_curvature.FocalCurvature",),
    "fix_illumination_3d": ("intensity.fix_illumination_3d.FlatField",),
    "compensate_psf": ("intensity.compensate_psf.AxialResponse",),
    "scan_distortion": ("tiles.scan_distortion.ScanDistortion",),
    "register_tiles": (
        "tiles.positions.TileRegistration", "tiles.positions.PlacedTile",
        "tiles.positions.MeasuredPair",
    ),
    "crop_3d_mosaic_below_interface": ("geometry.crop_3d_mosaic_below_interface.InterfaceCut",),
    "compensate_attenuation": ("intensity.compensate_attenuation.Attenuation",),
    "normalize_intensities_per_slice": (
        "intensity.normalize_intensities_per_slice.Normalization",
    ),
    "assess_slice_quality": (
        "quality.assess_slice_quality.SliceQuality", "quality.assess_slice_quality.PairSimilarity",
    ),
    "register_slices": ("brain.slice_registration.SliceRegistration",),
    "auto_exclude_slices": (
        "brain.auto_exclude_slices.ExclusionModel", "brain.auto_exclude_slices.ExcludedSlice",
    ),
    "interpolate_missing_slice": (
        "brain.gaps.interpolate_missing_slice.InterpolationReport", "brain.gaps.match.Match",
    ),
    "stack_slices_motor": ("brain.stack_slices_motor.BrainModel",),
    "correct_bias_field": ("brain.bias.model.BiasModel",),
    "align_to_ras": ("brain.align_to_ras.AlignedBrain",),
    "detect_rehoming": (
        "mosaic.detect_rehoming.RehomingReport", "mosaic.detect_rehoming.RehomingEvent",
    ),
    "analyze_shifts": ("mosaic.analyze_shifts.ShiftAnalysis",),
    "analyze_registration_transforms": ("quality.diagnostics_rotation.RegistrationDrift",),
    "analyze_acquisition_rotation": ("quality.diagnostics_rotation.StageGeometry",),
    "compare_stitching": ("quality.diagnostics_seams.SeamComparison",),
    "register_pairwise": ("brain.pairwise_files.PairwiseRegistration",),
    "estimate_transform": ("flat.estimate_transform.StageTransform",),
}  # fmt: skip
"""Dataclasses whose fields a model holds, by stage."""

OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files above ``docs/`` that are pages of the site."""


def fill(app: Any, name: str, source: list[str]) -> None:
    """Replace the mark ``<!-- generated: NAME -->`` of a page, and links out of ``docs/``."""
    if name == "parameters":
        schema = json.loads((ROOT / "nextflow_schema.json").read_text(encoding="utf-8"))
        source[0] = parameters_page(schema)
    text = re.sub(
        r"^<!-- generated: (\w+) -->$", lambda mark: PAGES[mark[1]](), source[0], flags=re.M
    )
    for file, page in OUTSIDE.items():
        text = text.replace(f"](../{file}", f"]({page}")
    source[0] = text


def refuse_fetched_parts(app: Any, exception: Exception | None) -> None:
    """Fail when a page of the site would fetch a script, style, font or image."""
    if exception is not None:
        return
    fetched = re.compile(
        r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="https?:|"""
        r"""<link\b(?=[^>]*rel="(?:stylesheet|preload|icon))[^>]*href="https?:"""
    )
    pages = sorted(Path(app.outdir).rglob("*.html"))
    found = [p.name for p in pages if fetched.search(p.read_text(encoding="utf-8"))]
    styles = sorted(Path(app.outdir).rglob("*.css"))
    found += [
        p.name for p in styles if re.search(r"(?:url\(|@import\s)[\"']?https?:", p.read_text())
    ]
    if found:
        from sphinx.errors import ExtensionError

        raise ExtensionError(f"pages that fetch from a server: {', '.join(found)}")


def returns_as_text(
    app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Keep sections ``Returns`` of plain sentences as text, of which napoleon would make types."""
    for start in range(len(lines) - 2):
        stop = lines.index("", start) if "" in lines[start:] else len(lines)
        body = lines[start + 2 : stop]
        if lines[start] == "Returns" and not any(line.startswith(" ") for line in body):
            lines[start : start + 2] = ["Result", "------"]


def scripts_page() -> str:
    """Return a section a script, from its parser."""
    scripts = sorted((ROOT / "scripts").glob("linum_*.py"))
    parsers = {path.name: _parser(path) for path in scripts}
    shared: dict[str, argparse.Action] = {}
    for parser in parsers.values():
        shared |= {a.dest: a for a in parser._actions if a.dest in SHARED and a.option_strings}
    parts = ["## Options that scripts share", _options([shared[k] for k in shared])]
    for name, parser in parsers.items():
        parts += [f"## {name}", _paragraphs(parser.description or ""), _usage(name, parser)]
        for group in parser._action_groups:
            own = [a for a in group._group_actions if a.dest not in SHARED]
            if own:
                title = group.title or ""
                if title not in ("positional arguments", "options"):
                    parts.append(f"**{title[:1].upper()}{title[1:]}**")
                parts.append(_options(own))
        also = [f"`{_long(a)}`" for a in parser._actions if a.dest in SHARED - {"help", "version"}]
        if also:
            parts.append(f"Shared: {', '.join(also)}.")
    return "\n\n".join(parts)


def _parser(path: Path) -> argparse.ArgumentParser:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parser = module.build_parser()
    parser.prog = path.name
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def _long(action: argparse.Action) -> str:
    """Return the long name of an option, or of an argument."""
    names = [name for name in action.option_strings if name.startswith("--")]
    return next(iter(names or action.option_strings), _value(action))


def _value(action: argparse.Action) -> str:
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return ""
    default = action.dest.upper() if action.option_strings else action.dest
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else default)
    text = " ".join(value) if isinstance(value, tuple) else str(value)
    many = {"*": f"[{text} …]", "+": f"{text} …", "?": f"[{text}]"}
    return many.get(str(action.nargs), text)


def _usage(name: str, parser: argparse.ArgumentParser) -> str:
    words = []
    for action in parser._actions:
        if action.option_strings and action.required:
            words.append(f"{_long(action)} {_value(action)}")
    words += [_value(a) for a in parser._actions if not a.option_strings]
    return f"```text\n{' '.join([name, *words])}\n```"


def _options(actions: list[argparse.Action]) -> str:
    rows = ["| option | default | what it does |", "| --- | --- | --- |"]
    for action in actions:
        if action.help is argparse.SUPPRESS:
            continue
        names = ", ".join(action.option_strings) or _value(action)
        value = _value(action) if action.option_strings else ""
        default = action.default
        empty = default in (None, False, argparse.SUPPRESS, "") or default == []
        text = (action.help or "").replace("%(default)s", str(default)).replace("%%", "%")
        cells = (
            f"`{f'{names} {value}'.strip()}`",
            "" if empty else f"`{default}`",
            _plain(text) + (" *(required)*" if action.option_strings and action.required else ""),
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _plain(text: str) -> str:
    """Escape what Markdown would take for markup."""
    return re.sub(r"([*_<\[\]])", r"\\\1", " ".join(text.split()))


def _paragraphs(text: str) -> str:
    return "\n\n".join(_plain(part) for part in text.split("\n\n"))


def stages_page() -> str:
    """Return a section a stage: its declaration, its parameters, and the function of its name."""
    functions = _functions()
    return "\n\n".join(_stage(stage, functions.get(stage.name, [])) for stage in STAGES.values())


def _stage(stage: Declaration, functions: list[str]) -> str:
    name = stage.name.removesuffix("_run")
    facts = {
        "Script": f"`linum_{name}.py`",
        "Tasks": f"one a {stage.per}",
        "After": ", ".join(f"`{n}`" for n in stage.after),
        "Runs when": ", ".join(f"`{k}` is `{_said(v)}`" for k, v in stage.when.items()),
        "Models": ", ".join(f"`{n}`" for n in stage.learns),
    }
    lines = [f"## {stage.name}", ""]
    lines += ["| | |", "| --- | --- |"]
    lines += [f"| {key} | {value} |" for key, value in facts.items() if value]
    rows = [
        f"| `{kind.__name__}` | `{field.name}` | `--{field.metadata['name']}` "
        f"| `{field.default}` | {_plain(field.metadata['help'])} |"
        for kind in stage.params
        for field in fields(kind)
    ]
    if rows:
        lines += ["", "| dataclass | field | parameter | default | meaning |"]
        lines += ["| --- | --- | --- | --- | --- |", *rows]
    if functions:
        lines += ["", "```{eval-rst}"]
        lines += [f".. autofunction:: {name}" for name in functions]
        lines += ["```"]
    return "\n".join(lines)


def _said(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _functions() -> dict[str, list[str]]:
    """Return functions of the library that are named like a stage."""
    found: dict[str, list[str]] = {}
    for module in _modules():
        for name in STAGES:
            value = vars(module).get(name)
            named_here = getattr(value, "__module__", "") == module.__name__
            if named_here and not module.__name__.startswith("linumpy.metrics."):
                found.setdefault(name, []).append(f"{module.__name__}.{name}")
    return found


def _modules() -> list[ModuleType]:
    names = [
        info.name
        for info in pkgutil.walk_packages(linumpy.__path__, "linumpy.")
        if not info.ispkg
        and info.name.split(".")[1]
        in {"brain", "flat", "geometry", "intensity", "io", "mosaic", "quality", "slices", "tiles"}
    ]
    return [importlib.import_module(name) for name in names]


def models_page() -> str:
    """Return a section a model: the dataclasses whose fields its JSON and NPZ hold."""
    parts = []
    for stage, classes in MODELS.items():
        parts += [f"## {stage}", "```{eval-rst}"]
        parts += [f".. autoclass:: linumpy.{name}\n   :no-members:\n" for name in classes]
        parts += ["```"]
    return "\n\n".join(parts)


def metrics_page() -> str:
    """Return a table of the metrics that stages add, with their limits."""
    _modules()  # They register what they measure when they are imported.
    rows = ["| stage | metric | unit | what it is | warning | error |", "| --- " * 6 + "|"]
    for reader, stage in {reader: stage for stage, reader in READERS.values()}.items():
        for name, unit, text, limits in _added(reader):
            limit = LIMITS.get(limits)
            down = " down" if limit and limit.higher_is_better else ""
            bounds = [f"{limit.warning:g}{down}", f"{limit.error:g}{down}"] if limit else ["", ""]
            cells = [f"`{stage}`", f"`{name}`", unit, _plain(text).replace("|", "\\|"), *bounds]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _added(reader: Callable[..., Any]) -> list[list[str]]:
    """Return name, unit, description and limits of what a function and those it calls add."""
    found = []
    for node in ast.walk(ast.parse(inspect.getsource(reader))):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr == "add" and len(node.args) > 3:
            name, _, *rest = node.args
            texts = [ast.unparse(argument).strip("f").strip("'\"") for argument in (name, *rest)]
            found.append([*texts, ""][:4])
        called = getattr(inspect.getmodule(reader), getattr(node.func, "id", ""), None)
        if inspect.isfunction(called) and "metrics" in called.__module__:
            found += _added(called)
    return found


def citation() -> str:
    """Return CITATION.cff as BibTeX."""
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    value = dict(re.findall(r"^([\w-]+): (\S.*)$", text, re.M))
    author = re.search(r"- name: (.+)", text)
    assert author is not None
    year = value["date-released"][:4]
    return (
        f"```bibtex\n@software{{linumpy,\n  title = {{{value['title']}}},\n"
        f"  author = {{{{{author[1]}}}}},\n  version = {{{value['version']}}},\n"
        f"  year = {{{year}}}\n}}\n```"
    )


def above(name: str) -> str:
    """Return a file above ``docs/``, with its links as seen from there."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    for file, page in OUTSIDE.items():
        text = text.replace(f"]({file}", f"]({page}")
    return text


PAGES: dict[str, Callable[[], str]] = {
    "scripts": scripts_page, "stages": stages_page, "citation": citation,
    "models": models_page, "metrics": metrics_page,
    "contributing": lambda: above("CONTRIBUTING.md"),
    "changelog": lambda: above("CHANGELOG.md"),
}  # fmt: skip
