"""A run that fails says why, last, and nothing else; what was under way is kept.

Stub runs whose shell fails chosen tasks (failing_shell.sh).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from linumpy.stage_params.declared import STAGES

from .conftest import REPOSITORY, Launch, Launcher, make_raw, read_trace

SHELL = Path(__file__).with_name("failing_shell.sh")
# Tasks run side by side whatever the machine; and no records that nobody reads here.
CONFIG = """
process.shell = ['{shell}', '-euo', 'pipefail']
executor {{ cpus = 4; memory = '99 GB' }}
process {{ withLabel: 'brain' {{ cpus = 1 }} }}
report.enabled = false
timeline.enabled = false
dag.enabled = false
"""
# What may stand between Nextflow's report of a task and the launcher's last words: its own two
# lines, and a task that it began in the very moment.
AFTER = re.compile(
    r" -- Check '\.nextflow\.log' file for details|"
    r"Execution cancelled -- Finishing pending tasks before exit|"
    r"\[../......\] Submitted process > .*|WARN: Killing running tasks \(1\)"
)


PROCESSES = {
    name
    for path in (REPOSITORY / "modules").glob("*.nf")
    for name in re.findall(r"^process (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
}


def included(workflow: str) -> set[str]:
    """Return the processes that a workflow has of its own."""
    text = (REPOSITORY / "workflows" / f"{workflow}.nf").read_text(encoding="utf-8")
    return set(re.findall(r"^include \{ (\w+) \} from '\.\./modules/\w+'", text, re.MULTILINE))


# Processes whose failure takes the same way as that of one that is tried: both have a task for the
# same thing, and what comes after them comes after that one (test_alike_processes_...).
ALIKE = {
    # A task of a run, and only the report takes what it made.
    "analyze_registration_transforms": {
        *("analyze_shifts", "analyze_acquisition_rotation", "compare_stitching"),
        *("export_manual_align", "stack_motor_only", "align_to_ras", "convert_omezarr_to_nifti"),
    },
    # The table of decisions, one after the other.
    "detect_rehoming": {"assess_slice_quality"},
    "auto_exclude_slices": {"finalise_interpolation"},
    # The same outputs: registration and metrics; brain and preview; atlas.
    "register_slices": {"refine_manual_transforms"},
    "stack_slices_motor": {"correct_bias_field", "stack_slices_2d"},
    "check_atlas": {"download_allen"},
    # A task a slice that hands its result to the next one's. The first of the chain is tried, that
    # whose result is joined to another's, and the last, whose results are gathered.
    "resample_mosaic_grid": {
        *("detect_focal_curvature", "fix_illumination_3d", "stitch_3d_refined"),
        *("compensate_psf_from_model", "compensate_psf_model_free"),
        *("crop_3d_mosaic_below_interface", "compensate_attenuation_inplace"),
    },
    # Files of each slice; the last of the chain has such, too.
    "normalize_intensities_per_slice": {"aip_png"},
}
TRIED = PROCESSES - set().union(*ALIKE.values())
# Options of each flow, and the processes whose failure is tried in it where they run there.
FLOWS: dict[str, tuple[str, set[str]]] = {
    "fused": (
        "--align_to_ras_enabled --atlas atlas.nii.gz --manual_transforms_dir manual --truth truth "
        "--correct_bias_field --export_manual_align --diagnostic_mode --nifti_resolution 25",
        TRIED - {"estimate_xy_shift_from_metadata"},
    ),
    "chained": (
        "--fused false",
        TRIED & {*included("reconstruct_chained"), "align_mosaics_3d_from_shifts"},
    ),
    "2.5d": (
        "--mode 2.5d",
        TRIED & {*included("reconstruct_2_5d"), "estimate_xy_shift_from_metadata"},
    ),
}
# What is under way when the first process fails, and ends.
BEFORE_SLICES = {
    "FAIL_IN": "estimate_xy_shift_from_metadata",
    "WAIT_IN": "generate_slice_config",
}


@dataclass
class Failure:
    """A launch that failed, and the tasks that it finished."""

    process: str
    launch: Launch
    states: dict[str, str]


class Flow:
    """Runs of one flow in one session, each failing in another process."""

    def __init__(self, launcher: Launcher, flow: str) -> None:
        self.launcher = launcher
        self.output = launcher.folder / "output"
        options, tried = FLOWS[flow]
        self.notes = launcher.folder / "failures"
        for folder in (self.notes, launcher.folder / "manual", launcher.folder / "truth"):
            folder.mkdir()
        for process in PROCESSES - tried:
            (self.notes / process).touch()
        (launcher.folder / "atlas.nii.gz").touch()
        config = launcher.folder / "failing.config"
        # Nextflow knows Bash by its name.
        shell = launcher.folder / "bash"
        shutil.copyfile(SHELL, shell)
        shell.chmod(0o755)
        config.write_text(CONFIG.format(shell=shell), encoding="utf-8")
        raw = make_raw(launcher.folder / "raw", [0, 1, 3])
        places: list[str | Path] = ["--input", raw, "--output", self.output]
        self.options = [*places, "-c", config, "-stub-run", *options.split()]

    def run(self, *more: str, **environment: str) -> Launch:
        shutil.rmtree(self.notes / "launch", ignore_errors=True)
        return self.launcher.run(*self.options, *more, FAILURES=str(self.notes), **environment)

    def fail_each(self, first: dict[str, str]) -> list[Failure]:
        """Run, first with these variables, and resume until a run succeeds."""
        failures: list[Failure] = []
        while True:
            before = {path.name for path in self.notes.iterdir()} | {"launch", "waits"}
            launch = self.run("-resume") if failures else self.run(**first)
            failed = {path.name for path in self.notes.iterdir()} - before
            if not failed:
                assert launch.status == 0, launch.text
                assert "linum_nextflow.py:" not in launch.text
                return failures
            failures.append(Failure(failed.pop(), launch, read_trace(self.output)))


def check_last_words(failure: Failure) -> None:
    text, process = failure.launch.text, failure.process
    assert failure.launch.status == 1
    assert text.count("ERROR ~") == 1, text
    report, _, rest = text.partition("\nTip: ")
    assert f"\nCommand error:\n  linum_{process}.py: error: tile (1, 2) cannot be read" in report
    *after, said, advice, command = rest.splitlines()[2:]
    assert [line for line in after if not AFTER.fullmatch(line)] == [], text
    assert re.fullmatch(
        rf"linum_nextflow\.py: error: {process} \(.+\): tile \(1, 2\) cannot be read", said
    )
    assert advice == "Next:  correct this, then go on with"
    assert re.fullmatch(r"  linum_nextflow\.py -c \S+ run \S+main\.nf --input .+ -resume", command)
    failed = {name.split(" ")[0] for name, state in failure.states.items() if state == "FAILED"}
    assert process in failed


@pytest.fixture(scope="module")
def make_flow(
    make_launcher: Callable[[str, Path], Launcher], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Flow]:
    """Return a maker of flows by name; a stub run needs no script."""
    return lambda flow: Flow(make_launcher(flow, tmp_path_factory.mktemp("none")), flow)


@pytest.fixture(scope="module")
def failures(
    make_flow: Callable[[str], Flow], made_once: Callable[[str, Callable[[Path], None]], Path]
) -> Callable[[str], list[Failure]]:
    """Return what gives the failures of a flow; they take minutes, once for all workers."""

    def failures_of(flow: str) -> list[Failure]:
        def make(folder: Path) -> None:
            first = BEFORE_SLICES if flow == "2.5d" else {}
            found = [asdict(failure) for failure in make_flow(flow).fail_each(first)]
            (folder / "failures.json").write_text(json.dumps(found), encoding="utf-8")

        path = made_once(f"failures_{flow}", make) / "failures.json"
        return [
            Failure(each["process"], Launch(**each["launch"]), each["states"])
            for each in json.loads(path.read_text(encoding="utf-8"))
        ]

    return failures_of


@pytest.mark.slow
@pytest.mark.parametrize("flow", FLOWS)
def test_a_failure_in_each_process(failures: Callable[[str], list[Failure]], flow: str) -> None:
    """Seen to fail where a list of an operator is given out short."""
    kept: set[str] = set()
    for failure in failures(flow):
        check_last_words(failure)
        # What was finished is taken up, and nothing was made of a part of the slices.
        assert kept <= {name for name, state in failure.states.items() if state == "CACHED"}
        kept = {name for name, state in failure.states.items() if state in ("CACHED", "COMPLETED")}


@pytest.mark.slow
def test_a_failure_before_the_first_slice(failures: Callable[[str], list[Failure]]) -> None:
    """Seen to fail with an error of an operator that got an empty list, and a task killed."""
    first, second, *_ = failures("2.5d")
    assert first.process == BEFORE_SLICES["FAIL_IN"]
    # It was under way, and ended.
    task = f"{BEFORE_SLICES['WAIT_IN']} (all slices)"
    assert (first.states[task], second.states[task]) == ("COMPLETED", "CACHED")


@pytest.mark.slow
def test_no_process_is_forgotten(failures: Callable[[str], list[Failure]]) -> None:
    assert {failure.process for flow in FLOWS for failure in failures(flow)} == TRIED


def test_alike_processes_end_the_same_channels() -> None:
    """What a process gives ends with it, and so does what those after it give."""

    def later(process: str) -> set[str]:
        near = {name for name, stage in STAGES.items() if process in stage.after}
        return near.union(*map(later, near))

    assert STAGES.keys() == PROCESSES
    for tried, others in ALIKE.items():
        assert tried in TRIED
        for process in others:
            assert STAGES[process].per == STAGES[tried].per, process
            assert later(process) <= later(tried), process


@pytest.mark.slow
def test_raw_tiles_without_a_slicing_interval(
    make_launcher: Callable[[str, Path], Launcher], scripts_folder: Path
) -> None:
    """Real scripts, which name what the user gave, not the links of a task's folder."""
    launcher = make_launcher("interval", scripts_folder)
    phantom = launcher.folder / "phantom"
    subprocess.run(
        [sys.executable, REPOSITORY / "scripts" / "linum_phantom.py", phantom, "--preset", "tiny"],
        env=launcher.environment(),
        stdin=subprocess.DEVNULL,
        timeout=300,
        check=True,
    )
    for path in phantom.rglob("metadata.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        content.pop("slice_thickness")
        path.write_text(json.dumps(content), encoding="utf-8")
    places = ("--input", phantom / "raw", "--output", "out")
    launch = launcher.run(*places, "-profile", "test", "--skip_preflight")
    assert launch.status == 1
    assert launch.text.count("ERROR ~") == 1, launch.text
    said, advice, _ = launch.text.splitlines()[-3:]
    assert re.fullmatch(
        # Grids and models are made side by side from the raw tiles: either may fail first.
        r"linum_nextflow\.py: error: (?:create_mosaic_grid_3d \((?P<slice>z0\d)\)|"
        r"learn_models \(all slices\)): slice (?(slice)(?P=slice)|z0\d): distance of the "
        rf'slices unknown; write "slice_thickness" \(mm\) to {phantom}/raw/\S*metadata\.json or '
        r"give --slicing_interval UM \(of the workflow: --slicing_interval_mm MM\)",
        said,
    ), said
    assert advice == "Next:  correct this, then go on with"
