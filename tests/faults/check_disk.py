"""Full, failing and read-only disks: an error of one line, and nothing left."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SCRIPTS, run_script
from tests.faults import kill_scripts
from tests.faults.host import need_program, need_root, read_only, resize, small_disk
from tests.faults.kill_scripts import JOBS

TIMEOUT_S = 300


@pytest.fixture(scope="module")
def micro(tmp_path_factory):
    """A folder with inputs for all jobs."""
    folder = tmp_path_factory.mktemp("micro")
    subprocess.run(
        [sys.executable, "-c", f"from {kill_scripts.__name__} import *; make_inputs(8)"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS.parent)},
        check=True,
        timeout=TIMEOUT_S,
    )
    return folder


def run_job(name, micro, out, *more, wrapper=(), **options):
    """Run a job with its outputs in another folder, maybe within another program."""
    job = JOBS[name]
    arguments = [
        str(out / a.removeprefix("out/")) if a.startswith("out/") else a for a in job.arguments
    ]
    return subprocess.run(
        [*wrapper, sys.executable, SCRIPTS / f"linum_{job.script}.py", *arguments, *more],
        cwd=micro,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS.parent)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        **options,
    )


def everything(folder):
    return sorted(
        (str(p.relative_to(folder)), p.read_bytes() if p.is_file() else b"")
        for p in folder.rglob("*")
    )


def pages(folder):
    """Return the bytes that files take on a disk in memory, where folders take none."""
    sizes = [p.stat().st_size for p in folder.rglob("*") if p.is_file()]
    return sum(-(-size // 4096) * 4096 for size in sizes)


def names(folder):
    return {p.name for p in folder.rglob("*")}


def is_whole(name, out):
    """Whether the main output of a job is there and whole, and nothing hidden beside it."""
    main = out / Path(JOBS[name].outputs[0]).name
    found = json.dumps(kill_scripts._meaning_of_zarr(main))
    return "torn" not in found and not any(n.startswith(".") for n in names(out))


def one_line(done, said):
    """Whether a script ended with an error of one line that names the disk."""
    errors = [line for line in done.stderr.splitlines() if ": error: " in line]
    return (
        done.returncode == 1
        and len(errors) == 1
        and said in errors[0]
        and "Traceback" not in done.stderr
    )


# Fewer bytes than the outputs take: none at all, and enough to get further.
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
@pytest.mark.parametrize("name", JOBS)
def test_a_full_disk(name, share, micro, tmp_path):
    """Seen to fail where `is_of_disk` knows none, and where `atomic_path` writes in place."""
    whole = tmp_path / "whole"
    assert run_job(name, micro, whole).returncode == 0
    need = pages(whole)
    with small_disk(tmp_path / "disk", max(4096, int(share * need))) as disk:
        out = disk / "out"
        out.mkdir()
        (out / "mine").write_text("1")
        done = run_job(name, micro, out)
        assert one_line(done, "No space left on device"), done.stderr
        # What was finished beside the main output may be there; that is not.
        assert Path(JOBS[name].outputs[0]).name not in names(out)
        assert not any(n.startswith(".") for n in names(out))
        assert (out / "mine").read_text() == "1"
        resize(disk, 2 * need + (1 << 20))
        again = run_job(name, micro, out, "--overwrite")
        assert again.returncode == 0, again.stderr
        assert is_whole(name, out)


@pytest.mark.parametrize("name", ["grid", "brain"])
def test_a_disk_that_is_full_when_an_output_is_replaced(name, micro, tmp_path):
    """Seen to fail where what is replaced is removed first."""
    whole = tmp_path / "whole"
    assert run_job(name, micro, whole).returncode == 0
    need = pages(whole)
    with small_disk(tmp_path / "disk", int(1.6 * need)) as disk:
        assert run_job(name, micro, disk).returncode == 0
        before = everything(disk)
        done = run_job(name, micro, disk, "--overwrite")
        assert one_line(done, "No space left on device"), done.stderr
        assert everything(disk) == before


# Every thread has its own count; the last one is the main thread's, which sees to folders.
FAULTS = [
    ("fsync:error=EIO:when=1", "Input/output error"),
    ("fsync:error=EIO:when=3", "Input/output error"),
    ("fsync:error=ENOSPC", "No space left on device"),
    ("mkdir,mkdirat:error=EDQUOT:when=3+", "Disk quota exceeded"),
    ("rename,renameat,renameat2:error=EIO", "Input/output error"),
    ("write,pwrite64,writev:error=EIO:when=2", "Input/output error"),
    ("write,pwrite64,writev:error=EIO:when=3", "Input/output error"),
]


@pytest.mark.parametrize(("fault", "said"), FAULTS)
def test_a_disk_that_fails(fault, said, micro, tmp_path):
    """Seen to fail where errors of fsync are passed over."""
    need_program("strace", "strace")
    assert run_job("aip", micro, tmp_path).returncode == 0
    before = everything(tmp_path)
    calls = fault.partition(":")[0]
    wrapper = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}"]
    done = run_job("aip", micro, tmp_path, "--overwrite", wrapper=[*wrapper, f"-einject={fault}"])
    if not fault.startswith("write"):
        # Where nothing can be written, neither can the error.
        assert one_line(done, said), done.stderr
    assert done.returncode == 1
    assert everything(tmp_path) == before


@pytest.mark.parametrize("error", ["EINVAL", "ENOSYS", "EPERM"])
def test_a_file_system_that_cannot_exchange(error, micro, tmp_path):
    """Seen to fail without `_UNKNOWN`."""
    need_program("strace", "strace")
    assert run_job("aip", micro, tmp_path).returncode == 0
    wrapper = ["strace", "-f", "-qq", "-o", "/dev/null", f"-einject=renameat2:error={error}"]
    for more in (["--overwrite"], []):
        done = run_job("aip", micro, tmp_path, *more, wrapper=wrapper)
        assert done.returncode == (0 if more else 1), done.stderr
        assert is_whole("aip", tmp_path)
        assert names(tmp_path) >= {"aip.ome.zarr"} and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", JOBS)
def test_a_folder_that_cannot_be_written_to(name, micro, tmp_path):
    """A bind mount, for root may write wherever modes forbid it.

    Seen to fail (a traceback) where `is_of_disk` does not know EROFS.
    """
    need_root()
    real = tmp_path / "real"
    real.mkdir()
    assert run_job(name, micro, real).returncode == 0
    before = everything(real)
    with read_only(real, tmp_path / "seen") as out:
        done = run_job(name, micro, out, "--overwrite")
        assert one_line(done, "Read-only file system"), done.stderr
        assert one_line(run_job(name, micro, out / "new"), "Read-only file system")
    assert everything(real) == before


@pytest.mark.parametrize("nbytes", [0, 2_000, 20_000])
@pytest.mark.parametrize("name", JOBS)
def test_a_quota_on_the_size_of_files(name, nbytes, micro, tmp_path):
    """Seen to fail (a traceback) where `is_of_disk` does not know EFBIG."""
    out = tmp_path / "out"
    out.mkdir()

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))

    done = run_job(name, micro, out, preexec_fn=limit)
    assert one_line(done, "File too large"), done.stderr
    assert Path(JOBS[name].outputs[0]).name not in names(out)
    assert not any(n.startswith(".") for n in names(out))


def test_a_full_disk_under_other_kinds_of_files(micro, tmp_path):
    """TIFF, NIfTI, pictures, tables and pages."""
    grid = micro / "grids" / "mosaic_grid_3d_z00.ome.zarr"
    brain = micro / "slices" / "slice_z00.ome.zarr"
    writes = {
        "convert_omezarr_to_tiff": (brain, "o.tif"),
        "convert_omezarr_to_nifti": (brain, "o.nii.gz"),
        "convert_omezarr": (brain, "o.zarr", "--to", "0.4"),
        "screenshot_omezarr": (brain, "o.png"),
        "aip_png": (grid, "a.png"),
        "estimate_xy_shift_from_metadata": (micro / "phantom" / "raw", "s.csv"),
        "register_tiles": (grid, "t.json"),
        "view_omezarr": (brain, "--state", "v.html"),
    }
    with small_disk(tmp_path / "disk", 8 * 4096) as disk:
        # All but a page is taken.
        filling = disk / "filling"
        with filling.open("wb") as file:
            free = os.statvfs(disk)
            file.write(b"\1" * (free.f_bavail * free.f_frsize))
        for script, arguments in writes.items():
            given = [
                disk / a if str(a).startswith(("o.", "a.", "s.", "t.", "v.")) else a
                for a in arguments
            ]
            done = run_script(script, *given, check=False)
            assert one_line(done, "No space left on device"), (script, done.stderr)
            assert [p.name for p in disk.iterdir()] == ["filling"], script
