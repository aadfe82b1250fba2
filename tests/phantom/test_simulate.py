"""Whole acquisitions on disk."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from linumpy.core.errors import InputError, LinumpyError, OutputExistsError
from linumpy.phantom import simulate as simulate_module
from linumpy.phantom.anatomy import Template
from linumpy.phantom.params import preset
from linumpy.phantom.simulate import make_scene, simulate, write_tile

from .conftest import Acquisition, acquire, micro

SCRIPT = Path(__file__).parents[2] / "scripts" / "linum_phantom.py"


def _digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix != ".npz"
    }


def test_bytes_and_layout(tiny: Acquisition) -> None:
    p = tiny.params
    raw = tiny.root / "raw"
    assert sorted(f.name for f in raw.iterdir()) == [
        "slice_z00", "slice_z01", "slice_z03", "state.json",
    ]  # fmt: skip
    files = list(raw.rglob("image_*.bin"))
    assert len(files) == 3 * 9 - 1
    assert {f.stat().st_size for f in files} == {4 * p.nz * (p.nx + p.n_extra) * p.ny}
    assert not (raw / "slice_z01" / "tiles" / "tile_x00_y02_z01").exists()
    text = (raw / "slice_z03/tiles/tile_x01_y02_z03/info.txt").read_text(encoding="utf-8")
    header, *lines = text.splitlines()
    assert header == "Scan info"
    info = dict(line.split(": ", 1) for line in lines)
    tile = tiny.truth["slices"][3]["tiles"][5]
    assert (tile["ix"], tile["iy"]) == (1, 2)
    assert int(info["bottom_z"]) - int(info["top_z"]) + 1 == p.nz
    assert (int(info["nx"]), int(info["ny"]), int(info["n_extra"])) == (80, 80, 20)
    assert (int(info["width"]), int(info["height"])) == (640, 640)
    for axis, name in enumerate("xyz"):
        assert float(info[f"stage_{name}_pos_mm"]) == pytest.approx(tile["stage_mm"][axis])
    assert tile["stage_mm"][2] == pytest.approx(0.6)


def test_values_are_finite_amplitudes(tiny: Acquisition) -> None:
    tile = tiny.raw(3, 2, 2)
    assert np.isfinite(tile).all() and tile.min() >= 0


def test_truth_records_missing_slices(tiny: Acquisition) -> None:
    slices = tiny.truth["slices"]
    assert [s["slice_id"] for s in slices] == [0, 1, 2, 3]
    assert [s["missing"] for s in slices] == [False, False, True, False]
    present = [[t["present"] for t in s["tiles"]] for s in slices]
    assert [sum(p) for p in present] == [9, 8, 0, 9]
    assert not present[1][2]
    assert slices[3]["face_um"] == pytest.approx(600, abs=15)


def test_truth_has_parameters_and_fields(tiny: Acquisition) -> None:
    truth, fields = tiny.truth, tiny.fields
    assert truth["version"] == 1 and truth["seed"] == 7
    assert truth["params"]["tiles_x"] == 3 and truth["voxel_um"] == [6.0, 8.0, 8.0]
    assert truth["axial"] == {"focus_um": 250.0, "rayleigh_um": 400.0}
    assert truth["tissue"]["white"] == {"amplitude": 320.0, "mu_per_mm": 2.4}
    assert fields["focal_um"].shape == fields["flat_field"].shape == (80, 80)
    assert fields["flat_field"].mean() == pytest.approx(1)
    assert {"face_z00", "face_z01", "face_z03"} <= set(fields)


def test_clean_volume_is_the_block(tiny: Acquisition, brain: Template) -> None:
    from linumpy.io.omezarr import open_image

    clean = open_image(tiny.root / "truth" / "clean.ome.zarr")
    classes = open_image(tiny.root / "truth" / "classes.ome.zarr")
    assert clean.voxel_um == (25.0, 25.0, 25.0) and clean.translation_um == (12.5,) * 3
    assert clean.array.shape == classes.array.shape
    mu = open_image(tiny.root / "truth" / "mu.ome.zarr")
    assert mu.array.shape == clean.array.shape and mu.translation_um == clean.translation_um
    extent = np.array(clean.array.shape) * 25
    mosaic = tiny.params.mosaic_um
    assert np.all(extent >= [tiny.params.block_depth_um, *mosaic])
    assert np.all(extent - 25 < [tiny.params.block_depth_um, *mosaic])
    amplitude, labels = np.asarray(clean.array[:]), np.asarray(classes.array[:])
    assert set(np.unique(labels)) >= {1, 2, 3}
    assert np.median(amplitude[labels == 1]) == pytest.approx(31, rel=0.1)
    assert 150 < np.median(amplitude[labels == 2]) < 240
    assert 220 < np.median(amplitude[labels == 3]) < 340
    # A voxel's amplitude is the mean of the anatomy over it, asked here voxel by voxel.
    scene, _ = make_scene(tiny.params, 7, brain)
    inner = np.array([-6.25, 6.25])
    for index in ((10, 25, 30), (20, 40, 22)):
        z, x, y = ((i + 0.5) * 25 + inner for i in index)
        expected = np.sqrt(scene.anatomy.properties(y, x, z).power).mean()
        assert amplitude[index] == pytest.approx(expected, rel=1e-4)
        expected = scene.anatomy.properties(y, x, z).mu_per_mm.mean()
        assert mu.array[index] == pytest.approx(expected, rel=1e-4)


def test_images_follow_the_clean_volume(tiny: Acquisition) -> None:
    """Brightness below the face, tile by tile, goes with the block's at the true position."""
    from linumpy.io.omezarr import open_image

    block = np.asarray(open_image(tiny.root / "truth" / "clean.ome.zarr").array[:])
    measured, known = [], []
    plan = tiny.truth["slices"][1]
    top = round(plan["face_um"] / 25)
    for tile in plan["tiles"]:
        if not tile["present"]:
            continue
        image = tiny.tile(1, tile["ix"], tile["iy"])[30:46].mean(axis=0)
        image /= tiny.fields["flat_field"]
        for i, j in np.ndindex(5, 5):
            at = np.array(tile["true_corner_um"]) + (np.array([i, j]) + 0.5) * 128
            a, b = (at / 25).astype(int)
            patch = block[top + 2 : top + 6, max(a - 2, 0) : a + 3, max(b - 2, 0) : b + 3]
            if patch.size:
                measured.append(image[16 * i : 16 * i + 16, 16 * j : 16 * j + 16].mean())
                known.append(patch.mean())
    assert np.corrcoef(measured, known)[0, 1] > 0.97


@pytest.mark.slow
def test_same_seed_gives_the_same_bytes_for_any_threads(tmp_path: Path, brain: Template) -> None:
    for name, seed, threads in (("a", 4, 1), ("b", 4, 3), ("c", 5, 2)):
        simulate(tmp_path / name, micro(), seed, threads=threads, template=brain)
    a, b, c = (_digests(tmp_path / name / "raw") for name in "abc")
    assert a == b and a.keys() == c.keys()
    images = [k for k in a if k.endswith(".bin")]
    assert len(images) == 8 and all(a[k] != c[k] for k in images)
    text = [(tmp_path / n / "truth" / "truth.json").read_text(encoding="utf-8") for n in "ab"]
    assert text[0] == text[1]


def test_a_tile_does_not_depend_on_those_before_it(tmp_path: Path, brain: Template) -> None:
    whole = acquire(tmp_path / "whole", micro(), 4, template=brain)
    scene, slices = make_scene(micro(), 4, brain)
    plan, tile = slices[1], slices[1].tiles[3]
    write_tile(tmp_path / "alone", scene, plan, tile)
    alone = (tmp_path / "alone" / "image_00000.bin").read_bytes()
    assert alone == np.asfortranarray(whole.raw(1, tile.ix, tile.iy)).tobytes(order="F")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_tiles(tmp_path: Path, no_brain: Template) -> None:
    peaks = []
    for count in (2, 8):
        params = micro(n_slices=1, tiles_x=count, nx=60, ny=60)
        tracemalloc.start()
        simulate(tmp_path / str(count), params, 1, threads=1, template=no_brain)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.25 * peaks[0]
    # And not with a tile either: a slab is at most a few dozen arrays of a million samples.
    assert max(peaks) < 100e6


def test_existing_output_is_replaced_with_overwrite_only(
    tmp_path: Path, no_brain: Template
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    params = micro(n_slices=1, tiles_x=1, tiles_y=1)
    simulate(out, params, 1, template=no_brain)
    before = _digests(out)
    with pytest.raises(OutputExistsError, match="raw"):
        simulate(out, params, 2, template=no_brain)
    assert _digests(out) == before
    simulate(out, params, 2, template=no_brain, overwrite=True)
    after = _digests(out)
    assert after["notes.txt"] == before["notes.txt"] and after != before
    assert sorted(f.name for f in out.iterdir()) == ["notes.txt", "raw", "truth"]


def test_failure_leaves_nothing_that_looks_finished(
    tmp_path: Path, no_brain: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, scene: object, plan: object, tile: object) -> None:
        if folder.name == "tile_x01_y00_z01":
            raise OSError("No space left on device")
        write_tile(folder, scene, plan, tile)  # type: ignore[arg-type]

    monkeypatch.setattr(simulate_module, "write_tile", fail)
    with pytest.raises(LinumpyError, match=r"tile_x01_y00_z01.*No space left"):
        simulate(tmp_path / "out", micro(), 1, template=no_brain)
    assert list((tmp_path / "out").iterdir()) == []


def test_too_small_disk_is_reported_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"raw tiles need .* GB free"):
        simulate(tmp_path / "out", preset("large", tiles_x=999, tiles_y=999), 1)
    assert list(tmp_path.iterdir()) == []


def test_bad_seed_and_threads(tmp_path: Path, no_brain: Template) -> None:
    with pytest.raises(InputError, match="seed = -1"):
        simulate(tmp_path / "out", micro(), -1, template=no_brain)
    with pytest.raises(InputError, match="threads = 0"):
        simulate(tmp_path / "out", micro(), 1, threads=0)


def _script(*argv: str) -> subprocess.CompletedProcess[str]:
    root = str(SCRIPT.parents[1])
    environment = {**os.environ, "PYTHONPATH": root}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *argv], capture_output=True, text=True, env=environment,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_command_line(tmp_path: Path) -> None:
    flags = [
        "--preset", "tiny", "--seed", "3", "--n_slices", "1", "--tiles_x", "1", "--tiles_y", "1",
    ]  # fmt: skip
    done = _script(str(tmp_path / "out"), *flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "out" / "raw"), str(tmp_path / "out" / "truth")]
    assert len(list((tmp_path / "out" / "raw").rglob("*.bin"))) == 1
    again = _script(str(tmp_path / "out"), *flags)
    assert again.returncode == 1
    assert again.stderr.startswith("linum_phantom.py: error:") and "--overwrite" in again.stderr
    bad = _script(str(tmp_path / "new"), "--overlap_fraction", "1.2")
    assert bad.returncode == 1 and "overlap_fraction = 1.2: expected less than 1" in bad.stderr
    assert not (tmp_path / "new").exists()


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['linum_phantom.py', '--help']\n"
        "try:\n"
        f"    runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
        "except SystemExit as status:\n"
        "    assert not status.code, status.code\n"
        "heavy = {'numpy', 'scipy', 'zarr', 'nibabel', 'nilearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--speckle_correlation" in done.stdout and "µm" in done.stdout
