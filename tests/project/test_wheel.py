"""The wheel in an environment of its own: no extras, no clone, whatever lies in the folder."""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"

pytestmark = pytest.mark.slow

# Of a run on raw tiles with a gap, without any switch.
DEFAULT_STEPS = {
    "analyze_shifts", "assess_slice_quality", "auto_exclude_slices", "create_mosaic_grid_3d",
    "detect_rehoming", "estimate_xy_shift_from_metadata", "finalise_interpolation",
    "generate_pipeline_report", "generate_slice_config", "interpolate_missing_slice",
    "learn_models", "measure_pairs", "reconstruct_slice", "register_slices", "stack_slices_motor",
}  # fmt: skip

PARSE_ALL = """
import importlib.machinery, importlib.util, pathlib, sys
scripts = sorted(pathlib.Path(sys.argv[1]).glob("linum_*.py"))
for script in scripts:
    loader = importlib.machinery.SourceFileLoader(script.stem, str(script))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(script.stem, loader))
    sys.modules[script.stem] = module
    loader.exec_module(module)
    module.build_parser().format_help()
print(len(scripts))
"""


class Installation:
    """An environment with the wheel, and a user's folder."""

    def __init__(self, folder: Path) -> None:
        self.user = folder / "user"
        self.user.mkdir()
        self.bin = folder / "environment" / "bin"
        shell = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP"}
        self.shell = {name: value for name, value in os.environ.items() if name not in shell}
        self.shell["PATH"] = os.pathsep.join([str(self.bin), os.environ["PATH"]])
        # What a build fetches is pinned as well.
        self.shell |= {"PIP_CONSTRAINT": str(CONSTRAINTS), "PYTHONDONTWRITEBYTECODE": "1"}
        self.run(sys.executable, "-m", "venv", self.bin.parent)
        pip = (self.bin / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        self.run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
        (self.wheel,) = folder.glob("*.whl")
        self.run(*pip, "install", "--no-compile", "--constraint", CONSTRAINTS, self.wheel)
        self.pip = pip

    def run(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            list(map(str, command)),
            cwd=self.user,
            env=self.shell,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=1800,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout
        return done

    @property
    def package(self) -> Path:
        (found,) = self.bin.parent.glob("lib/python3*/site-packages/linumpy")
        return found

    def files(self) -> dict[str, tuple[int, int]]:
        """Return size and time of every file of the environment; Python writes bytecode at will."""
        return {
            str(path): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in self.bin.parent.rglob("*")
            if path.is_file() and path.parent.name != "__pycache__"
        }


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    return Installation(tmp_path_factory.mktemp("wheel"))


def test_every_module_and_script_is_there_and_needs_no_extra(installation):
    python = installation.bin / "python"
    said = installation.run(python, ROOT / "tests" / "project" / "import_all.py").stdout.split()
    modules = len([p for p in (ROOT / "linumpy").rglob("*.py") if p.name != "__init__.py"])
    packages = len(list((ROOT / "linumpy").rglob("__init__.py"))) - 1
    assert said == [str(modules + packages)]
    said = installation.run(python, "-c", PARSE_ALL, installation.bin).stdout.split()
    assert said == [str(len(list((ROOT / "scripts").glob("linum_*.py"))))]


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["linum_phantom.py", "out", "--preset", "tiny"], "demo"),
        (["linum_gpu_info.py", "--use_gpu"], "gpu"),
        (["linum_aip.py", "https://127.0.0.1:9/a.ome.zarr", "aip.ome.zarr"], "remote"),
    ],
)
def test_errors_of_missing_extras_name_the_install_command(installation, command, extra):
    done = installation.run(installation.bin / command[0], *command[1:], check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    (advice,) = re.findall(r"install the extra: .*", done.stdout.splitlines()[-1])
    assert shlex.split(advice)[5] == f"{installation.wheel}[{extra}]"


def test_a_gap_is_filled_from_a_folder_with_a_decoy(installation, tiny, tmp_path):
    installation.run(
        *installation.pip, "install", "--no-compile", f"{installation.wheel}[nextflow]"
    )
    raw = tmp_path / "raw"
    shutil.copytree(tiny / "raw", raw, ignore=shutil.ignore_patterns("slice_z01"))
    decoy = installation.user / "linumpy"
    decoy.mkdir()
    for name in ("main.nf", "__init__.py"):
        (decoy / name).write_text("error('the decoy runs')\n", encoding="utf-8")

    launcher = installation.bin / "linum_nextflow.py"
    workflow = installation.package / "workflow" / "main.nf"
    assert installation.run(launcher, "path").stdout == f"{workflow}\n"
    before = installation.files()
    # No GPU is looked for; what is needed is in the wheel, and nothing is written beside it.
    installation.run(
        *(launcher, "run", "-profile", "test", "-ansi-log", "false", "linumpy"),
        *("--input", raw, "--output", "linumpy_results", "--subject_name", "tiny"),
        # Of 300 µm below the faces, which are 200 µm apart, 100 µm are missing between them.
        *("--crop_interface_out_depth", "300"),
    )
    assert installation.files() == before
    made = {path.name for path in installation.user.iterdir()}
    assert made == {"linumpy", "linumpy_results", "work", ".nextflow", ".nextflow.log"}

    output = installation.user / "linumpy_results"
    (trace,) = (output / "pipeline_info").glob("trace_*.tsv")
    with trace.open(encoding="utf-8", newline="") as file:
        tasks = list(csv.DictReader(file, delimiter="\t"))
    assert {task["status"] for task in tasks} == {"COMPLETED"}
    assert {task["process"].split(":")[-1] for task in tasks} == DEFAULT_STEPS
    assert (output / "report.html").stat().st_size > 10_000

    with (output / "slice_config.csv").open(encoding="utf-8", newline="") as file:
        (gap,) = [row for row in csv.DictReader(file) if row["interpolated"] == "true"]
    assert (gap["slice_id"], gap["interpolation_method_used"]) == ("01", "zmorph")
    model = json.loads((output / "models" / "stack_slices_motor.json").read_text(encoding="utf-8"))
    slices = model["slices"]
    assert [(one["slice_id"], one["interpolated"]) for one in slices] == [
        (0, False),
        (1, True),
        (2, False),
    ]

    # The gap's planes look like those above and below.
    brain = zarr.open_array(output / "tiny.ome.zarr" / "0", mode="r")[:]
    first, last = slices[1]["z_start_px"], slices[2]["z_start_px"]
    assert 3 <= last - first <= 15
    above, inside, below = (
        brain[a:b].mean(0) for a, b in ((first - 8, first), (first, last), (last, last + 8))
    )
    for other in (above, below):
        assert np.corrcoef(inside.ravel(), other.ravel())[0, 1] > 0.8
    bright = [np.median(image[image > 0.05]) for image in (above, inside, below)]
    assert 0.8 * min(bright) < bright[1] < 1.25 * max(bright)
