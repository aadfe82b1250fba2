"""Real launches of Nextflow. Each starts a JVM for seconds, so tests share what a launch left."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Launch:
    """What a launch printed and how it ended."""

    status: int
    text: str
    seconds: float


class SharedClasses:
    """Archive of Nextflow's parsed classes (Java's AppCDS), made by whichever launch ends first."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        # Whole or absent, however other launches end.
        self._made = archive.with_name(f"classes_{uuid4().hex}.jsa")
        option = (
            f"SharedArchiveFile={archive}"
            if archive.exists()
            else f"ArchiveClassesAtExit={self._made}"
        )
        self.options = f"{os.environ.get('NXF_OPTS', '')} -XX:{option} -Xlog:cds*=off"

    def keep(self) -> None:
        """Share what a launch with these options made, once it has ended."""
        if self._made.exists():
            self._made.replace(self._archive)


class Launcher:
    """Runs ``linum_nextflow.py`` in a folder of its own, tasks finding the given scripts."""

    def __init__(self, folder: Path, scripts: Path, archive: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "scripts.config"
        self.config.write_text(f"env.PATH = '{scripts}:$PATH'\n", encoding="utf-8")
        self._archive = archive

    @property
    def classes(self) -> SharedClasses:
        """Classes for one launch."""
        return SharedClasses(self._archive)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a launch; the working tree's package is imported."""
        paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "100", **more}

    def __call__(self, *arguments: str | Path, timeout: float = 1800, **environment: str) -> Launch:
        """Launch Nextflow with arguments and extra environment variables."""
        script = REPOSITORY / "scripts" / "linum_nextflow.py"
        classes = self.classes
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, str(script), *map(str, arguments)],
            cwd=self.folder,
            env=self.environment(**{"NXF_OPTS": classes.options, **environment}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=timeout,
            check=False,
        )
        classes.keep()
        return Launch(done.returncode, done.stdout, time.monotonic() - start)

    def run(self, *arguments: str | Path, **environment: str) -> Launch:
        """Launch the pipeline."""
        main = REPOSITORY / "main.nf"
        return self("-c", self.config, "run", main, *arguments, **environment)


@pytest.fixture(scope="session")
def scripts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the working tree's scripts, executable as once installed."""
    folder = tmp_path_factory.mktemp("scripts")
    for script in (REPOSITORY / "scripts").glob("linum_*.py"):
        copy = folder / script.name
        shutil.copyfile(script, copy)
        copy.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def fake_scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder where every script only notes how it was called."""
    folder = tmp_path_factory.mktemp("fakes")
    text = (Path(__file__).parent / "fake_script.py").read_text(encoding="utf-8")
    for script in (REPOSITORY / "scripts").glob("linum_*.py"):
        fake = folder / script.name
        fake.write_text(text, encoding="utf-8")
        fake.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def make_launcher(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Launcher]:
    """Return a maker of launchers, each with its own launch folder; all workers share classes."""
    base = tmp_path_factory.getbasetemp()
    archive = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "classes.jsa"
    return lambda name, scripts: Launcher(
        tmp_path_factory.mktemp(name) / "launch", scripts, archive
    )


def make_raw(root: Path, slices: Sequence[int], *, tiles: int = 2) -> Path:
    """Make a folder that looks like a raw acquisition from outside."""
    for slice_id in slices:
        folder = root / f"slice_z{slice_id:02d}"
        for x in range(tiles):
            tile = folder / "tiles" / f"tile_x{x:02d}_y00_z{slice_id:02d}"
            tile.mkdir(parents=True)
            # Two A-lines of one sample: eight bytes.
            header = "Scan info\nnx: 2\nny: 1\nwidth: 200\nheight: 100\ntop_z: 0\nbottom_z: 0\n"
            (tile / "info.txt").write_text(header, encoding="utf-8")
            (tile / "image_00000.bin").write_bytes(bytes(8))
        metadata = '{"axial_resolution_um": 10, "slice_thickness": 0.2}\n'
        (folder / "metadata.json").write_text(metadata, encoding="utf-8")
    return root


def read_trace(output: Path) -> dict[str, str]:
    """Return the state of each task of the latest launch, by ``process (tag)``."""
    latest = max((output / "pipeline_info").glob("trace_*.tsv"))
    with latest.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return {row["name"].split(":")[-1]: row["status"] for row in rows}
