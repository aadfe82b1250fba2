"""`linum_verify.py`: one store, several, whole folders; what it prints and how it ends."""

import shutil

import pytest

from linumpy.store.verify import find_stores, verify
from tests.conftest import run_script

from .stores import delete, flip_bit, make_store, truncate


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    for setup in ("ours", "raw"):
        make_store(folder / f"{setup}.ome.zarr", setup)
    return folder


@pytest.fixture
def output(stores, tmp_path):
    """What a run leaves: stores at several depths, other files, a hidden leftover, a link."""
    shutil.copytree(stores / "ours.ome.zarr", tmp_path / "out/brain.ome.zarr")
    shutil.copytree(stores / "ours.ome.zarr", tmp_path / "out/slices/slice_z01.ome.zarr")
    shutil.copytree(stores / "raw.ome.zarr", tmp_path / "out/slices/slice_z02.ome.zarr")
    shutil.copytree(stores / "raw.ome.zarr", tmp_path / "out/.brain.ome.zarr.partial-0/x.zarr")
    (tmp_path / "out/report.html").write_text("report")
    (tmp_path / "out/slices/again").symlink_to(tmp_path / "out")
    return tmp_path / "out"


def test_a_folder_is_searched_for_all_stores(output):
    names = ["brain.ome.zarr", "slices/slice_z01.ome.zarr", "slices/slice_z02.ome.zarr"]
    assert find_stores(output) == [output / name for name in names]
    # One without any metadata counts too.
    (output / "slices/slice_z01.ome.zarr/zarr.json").unlink()
    assert find_stores(output) == [output / name for name in names]


def test_the_script_on_whole_stores(output):
    for options, said in (((), "names and sizes"), (("--deep",), "as written")):
        done = run_script("verify", output, *options)
        assert done.stdout.startswith("3 OME-Zarr are as written") and said in done.stdout


def test_the_script_names_every_problem(output):
    """Status 1, a line for each file, and how many stores in the end."""
    brain, slice_ = output / "brain.ome.zarr", output / "slices/slice_z02.ome.zarr"
    truncate(brain / "0/c/0/0/1", None)
    delete(brain / "0/c/0/1/1", None)
    flip_bit(slice_ / "0/c/0/0/0", None)
    done = run_script("verify", output, check=False)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{brain}/0/c/0/0/1: ") and "the manifest says" in lines[0]
    assert lines[1].startswith(f"{brain}/0/c/0/1/1: missing")
    assert done.stderr == "linum_verify.py: error: 1 of 3 OME-Zarr: see above\n"
    done = run_script("verify", "--deep", brain, slice_, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines()[:2] == lines
    assert f"{slice_}/0/c/0/0/0: altered" in done.stdout
    assert "2 of 2 OME-Zarr" in done.stderr


def test_stores_without_a_manifest_are_reported_and_adopted(output):
    """What nobody listed is not called whole; `--adopt` lists it."""
    import zarr

    foreign = output / "foreign.zarr"
    zarr.create_array(foreign, shape=(4, 4), dtype="f4", chunks=(2, 2), zarr_format=2)[...] = 1
    assert verify(foreign) == verify(foreign, deep=True) == [f"{foreign}: has no manifest"]
    done = run_script("verify", output, check=False)
    assert (done.returncode, done.stdout) == (1, f"{foreign}: has no manifest\n")
    done = run_script("verify", foreign, "--adopt")
    assert done.stdout == "1 OME-Zarr have a new manifest\n"
    assert verify(foreign, deep=True) == []
    assert sorted(p.name for p in foreign.iterdir()) == sorted(
        [".zarray", ".zattrs", "0.0", "0.1", "1.0", "1.1"]
    )
    # A shard that its own checksums say is damaged is not blessed.
    flip_bit(output / "brain.ome.zarr/0/c/0/0/1", None)
    done = run_script("verify", output, "--adopt", check=False)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{output}/brain.ome.zarr/0/c/0/0/1: inner chunk")
    assert len(verify(output / "brain.ome.zarr", deep=True)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--deep",), ("--adopt",)])
def test_nothing_to_verify_is_an_error(tmp_path, options):
    for path, words in ((tmp_path / "x", "no such folder"), (tmp_path, "no OME-Zarr in it")):
        done = run_script("verify", path, *options, check=False)
        assert done.returncode == 1
        assert done.stderr == f"linum_verify.py: error: {path}: {words}\n"
