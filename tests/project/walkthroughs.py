"""The walk-throughs of CONTRIBUTING.md as edits of a copy of the repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ADDED = Path(__file__).with_name("walkthrough")


class Scratch:
    """A copy of what git tracks, or would track."""

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        self.files = {name for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
        for name in self.files:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)

    def add_files(self, walkthrough: str) -> None:
        """Put the new files of a walk-through in their places."""
        for source in (ADDED / walkthrough).rglob("*.txt"):
            target = self.root / source.relative_to(ADDED / walkthrough).with_suffix("")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o755 if target.parent.name == "scripts" else 0o644)

    def insert(self, name: str, before: str, text: str) -> None:
        """Insert text before the only place where a file holds another."""
        path = self.root / name
        content = path.read_text(encoding="utf-8")
        assert content.count(before) == 1, (name, before, content.count(before))
        path.write_text(content.replace(before, text + before), encoding="utf-8")

    def replace(self, name: str, old: str, new: str) -> None:
        """Replace the only place where a file holds some text."""
        self.insert(name, old, new + "\0")
        path = self.root / name
        path.write_text(path.read_text(encoding="utf-8").replace("\0" + old, ""), encoding="utf-8")

    def changed(self) -> set[str]:
        """Return the files that are new or differ."""
        made = {
            str(path.relative_to(self.root))
            for path in self.root.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        return {
            name
            for name in made
            if name not in self.files
            or (ROOT / name).read_bytes() != (self.root / name).read_bytes()
        }

    def run(self, *command: str | Path) -> str:
        """Run a command of this Python in the copy; what it printed is shown when it fails."""
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout

    def pytest(self, *arguments: str) -> None:
        """Run tests of the copy, slow ones, too; some must have run."""
        text = self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *arguments)
        assert re.search(r"\d+ passed", text), text


def named_files(heading: str, **names: str) -> set[str]:
    """Return the files that the table of a section of CONTRIBUTING.md names.

    Parameters
    ----------
    heading
        Of the section.
    names
        What stands for names in it, such as ``smooth_tiles``.
    """
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", text.split(f"\n## {heading}\n")[1], maxsplit=1, flags=re.M)[0]
    files = re.findall(r"^\| `([^`]+)` \|", section, re.M)
    for said, used in names.items():
        files = [name.replace(said, used) for name in files]
    assert len(files) == len(set(files)) > 2
    return set(files)


def add_tile_stage(scratch: Scratch) -> None:
    """Add a stage that divides all tiles by one learned level."""
    scratch.add_files("tile_stage")
    params = "linumpy/stage_params/slices.py"
    scratch.insert(
        params,
        "@dataclass(frozen=True)\nclass StitchParams:",
        '@dataclass(frozen=True)\nclass ScaleParams:\n    """Parameters of the level."""\n\n'
        '    enabled: bool = param(True, "scale_tiles_enabled", "divide by the level of tiles")\n'
        "\n\n",
    )
    scratch.insert(params, "    stitch: StitchParams\n", "    scale: ScaleParams\n")
    scratch.insert(
        params,
        ')\n"""Stages that correct tiles',
        '    _on_tiles(\n        "scale_tiles",\n'
        '        *("fix_illumination_3d", "learn_models"),\n'
        "        memory=_TILES,\n        params=(ScaleParams,),\n    ),\n",
    )
    stages = "linumpy/slices/tile_stages.py"
    scratch.insert(
        stages,
        "from linumpy.io.grid import GridInfo\n",
        "from linumpy.intensity.scale_tiles import (\n    TileLevel,\n    fit_tile_level,\n"
        "    mean_level,\n    scale_tiles,\n)\n",
    )
    scratch.replace(
        stages,
        "import FocalParams, IlluminationParams, ResampleParams\n",
        "import (\n    FocalParams,\n    IlluminationParams,\n    ResampleParams,\n"
        "    ScaleParams,\n)\n",
    )
    scratch.insert(
        stages,
        "LEARNED: dict[",
        "class ScaleTiles(FieldStage):\n"
        '    """Divides by the level; one model serves the acquisition."""\n\n'
        '    name = "scale_tiles"\n    Params, Model = ScaleParams, TileLevel\n\n'
        "    def measure(self, tile: Tile) -> float:\n"
        '        """Return the mean of a tile."""\n'
        "        return mean_level(tile.data, tile.valid)\n\n"
        "    def solve(self) -> TileLevel:\n"
        '        """Find the level."""\n'
        "        return fit_tile_level([float(mean) for mean in self._values.values()])\n\n"
        "    def apply(self, tile: Tile) -> Tile:\n"
        '        """Divide a tile."""\n'
        "        return Tile(tile.key, scale_tiles(tile.data, self.model.level), tile.valid)\n\n\n",
    )
    scratch.replace(
        stages, "(DetectFocalCurvature, FixIllumination3d)",
        "(DetectFocalCurvature, FixIllumination3d, ScaleTiles)",
    )  # fmt: skip
    flow = "workflows/reconstruct_chained.nf"
    include = "include { scale_tiles } from '../modules/scale_tiles'\n"
    scratch.insert(flow, "include { aip_png }", include)
    path = scratch.root / flow
    text = path.read_text(encoding="utf-8")
    head, tail = text.split("    aip_png(fix_illumination_3d", 1)
    tail = ("    aip_png(fix_illumination_3d" + tail).replace(
        "fix_illumination_3d.out.grid", "scale_tiles.out.grid"
    )
    path.write_text(
        head
        + "    scale_tiles(fix_illumination_3d.out.grid, models, "
        + "stage_params('scale_tiles', params, schema))\n"
        + tail.replace(
            "        aip_png.out.time,", "        scale_tiles.out.time,\n        aip_png.out.time,"
        ),
        encoding="utf-8",
    )
    stages_of = ["learn_models", "reconstruct_slice", "scale_tiles", "evaluate"]
    entry = {
        "type": "boolean",
        "description": "Divide by the level of tiles.",
        "default": True,
        "stages": stages_of,
    }
    text = json.dumps(entry, indent=2).replace("\n", "\n        ")
    scratch.insert(
        "nextflow_schema.json",
        '        "learn_max_tiles": {',
        f'        "scale_tiles_enabled": {text},\n',
    )
    scratch.insert("nextflow.config", "    learn_max_tiles =", "    scale_tiles_enabled = true\n")
    scratch.run("-m", "linumpy.parameters_page", "nextflow_schema.json", "docs/parameters.md")
    scratch.insert(
        "docs/generated_pages.py",
        '    "compensate_psf": (',
        '    "scale_tiles": ("intensity.scale_tiles.TileLevel",),\n',
    )
    scratch.insert("CHANGELOG.md", "- **Rooms**", "- **One level** for all tiles.\n")


def add_codec(scratch: Scratch) -> None:
    """Add bzip2, which the host alone decodes."""
    scratch.add_files("codec")
    registry = "linumpy/store/codecs.py"
    scratch.replace(
        registry,
        "from linumpy.store import frame_walks, host_decoders\n",
        "from linumpy.store import bz2_chunks, frame_walks, host_decoders\n",
    )
    scratch.insert(
        registry,
        '    )\n}\n"""All codecs',
        '        Codec(\n            "bz2",\n            "bzip2",\n'
        "            bz2_chunks.inspect_bz2,\n            bz2_chunks.decode_bz2,\n"
        "            count=bz2_chunks.count_bz2,\n        ),\n",
    )
    scratch.insert(
        "docs/gpu.md",
        "\nZarr v2 and v3, sharded and not,",
        "| bzip2 | CPU | CPU | CPU | by the CPU's cores |\n",
    )
    scratch.insert("CHANGELOG.md", "- **Rooms**", "- **bzip2** chunks are read and written.\n")


def add_raw_format(scratch: Scratch) -> None:
    """Add slices of NumPy files."""
    scratch.add_files("raw_format")
    scratch.insert(
        "linumpy/mosaic/raw_formats.py",
        '    )\n}\n"""All raw formats',
        '        RawFormat("NPY", "NumPy files", "linumpy.mosaic.npy_tiles:open_npy_tiles"),\n',
    )
    scratch.insert(
        "docs/formats.md",
        "## mosaic_grid_3d_z07.ome.zarr\n",
        "## NumPy files\n\n`--data_type NPY` reads the files that `tiles.csv` names, a line a "
        "tile: name, x and y of its middle\nin mm.\n\n",
    )
    scratch.insert("CHANGELOG.md", "- **Rooms**", "- **NumPy files** as a raw format.\n")


def add_report_figure(scratch: Scratch) -> None:
    """Add a plot of the depths' standard errors."""
    figures = "linumpy/report/slice_figures.py"
    scratch.insert(
        figures,
        "def overlap_plots(",
        "def depth_plot(slices: Sequence[Mapping[str, Any]]) -> Plot:\n"
        '    """Draw the standard error of the depth of every slice that has one, um."""\n'
        '    known = [s for s in slices if s.get("depth_sigma_um") is not None]\n'
        '    rows = [(int(s["slice_id"]), float(s["depth_sigma_um"])) for s in known]\n'
        "    figure, axes = panel(2.4)\n"
        "    ids, sigmas = zip(*rows, strict=True)\n"
        '    axes.plot(ids, sigmas, marker="o", markersize=3, color=BLUE)\n'
        '    _by_slice(axes, "µm")\n'
        '    title = "Standard error of depths"\n'
        '    return Plot("depth_errors", title, figure, ("slice", "sigma_um"), rows)\n\n\n',
    )
    build = "linumpy/report/build.py"
    scratch.replace(
        build,
        "import overlap_plots, projection, shift_plots",
        "import depth_plot, overlap_plots, projection, shift_plots",
    )
    scratch.insert(
        build,
        "    if run.stack is not None and run.stack.get(",
        '    if any(s.get("depth_sigma_um") is not None for s in turns.get("slices", ())):\n'
        '        plots.append(depth_plot(turns["slices"]))\n',
    )
    parts = "tests/report/test_report_parts.py"
    scratch.replace(
        parts,
        "import motor_positions, projection\n",
        "import depth_plot, motor_positions, projection\n",
    )
    scratch.insert(
        parts,
        "def test_trace_is_summed_by_stage(",
        "def test_depth_errors_are_those_of_the_model() -> None:\n"
        "    sigmas = {0: None, 1: 2.5, 2: 4.0}\n"
        '    slices = [{"slice_id": i, "depth_sigma_um": s} for i, s in sigmas.items()]\n'
        "    plot = depth_plot(slices)\n"
        "    assert plot.rows == [(1, 2.5), (2, 4.0)]\n"
        "    assert list(plot.figure.axes[0].lines[0].get_ydata()) == [2.5, 4.0]\n\n\n",
    )
    scratch.insert(
        "tests/report/conftest.py",
        '        record["jumps"] = [2]\n',
        '        for entry in record["slices"][1:]:\n'
        '            entry["depth_sigma_um"] = 1.5 * entry["slice_id"]\n',
    )
    page = "tests/report/test_report_page.py"
    for words in ('source.count("<svg") == ', "== len(addresses) == "):
        text = (scratch.root / page).read_text(encoding="utf-8")
        number = text.split(words)[1].split()[0]
        scratch.replace(page, f"{words}{number}\n", f"{words}{int(number) + 1}\n")
    scratch.replace("docs/report.md", "| Alignment | ", "| Alignment | depth errors, ")
    scratch.insert("CHANGELOG.md", "- **Rooms**", "- **Depth errors** in the report.\n")
