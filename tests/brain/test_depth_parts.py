"""Volumes that processes write by parts of depth: the same files, and how their ends are told."""

import os
import signal
import time

import numpy as np
import pytest

from linumpy.brain import depth_parts as module
from linumpy.brain.atlas.apply import apply_to_volume
from linumpy.brain.correct_bias_field import correct_bias_field
from linumpy.brain.depth_parts import DepthParts, PlanesAndRows, depth_parts, usual_parts
from linumpy.core import worker_process
from linumpy.core.device import CPU, Device
from linumpy.core.errors import DeviceMemoryError, InputError, LinumpyError
from linumpy.core.exit_status import DEVICE_MEMORY, FAILED, HOST_MEMORY, exit_status
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.pyramid import Pyramid, write_parts
from linumpy.io.slice_layout import volume_spec
from linumpy.stage_params.bias import BiasParams

SHAPE = (530, 40, 48)


@pytest.fixture(scope="module")
def brain(tmp_path_factory):
    """A brain of three layers of shards, with a gap and a border without data."""
    rng = np.random.default_rng(8)
    path = tmp_path_factory.mktemp("parts") / "brain.ome.zarr"
    z, i, j = (np.linspace(-1, 1, n) for n in SHAPE)
    inside = (z[:, None, None] * 0.7) ** 2 + i[:, None] ** 2 + j**2 < 0.8
    valid = np.ones(SHAPE, np.uint8)
    valid[250:259] = valid[:, :5] = 0
    data = np.where(inside, 0.6 + 0.2 * i[:, None], 0.004) * rng.gamma(4, 0.25, SHAPE)
    data = (data * valid).astype(np.float32)
    spec = volume_spec(SHAPE, (10.0,) * 3, (0.0,) * 3, {"kind": "brain", "slice_ids": [0, 1, 2]})
    whole = tuple(slice(0, n) for n in SHAPE)
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        pyramid = Pyramid(image, [25.0, 50.0], SHAPE)
        image.array[whole], image.valid[whole] = data, valid
        write_parts(pyramid.add(whole, data, valid))
    return path


def chunks(path):
    """The files of all arrays of a store."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "zarr.json"
    }


def assert_same(one, other):
    first, second = chunks(one), chunks(other)
    assert set(first) == set(second) and any(name.startswith("2/c/") for name in first)
    for name, content in first.items():
        assert content == second[name], name


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "engine"), [(2, "linumpy"), (3, "linumpy"), (2, "itk")])
def test_a_bias_field_by_parts_is_corrected_to_the_same_files(brain, tmp_path, parts, engine):
    if engine == "itk":
        pytest.importorskip("SimpleITK")
    params = BiasParams(engine=engine, shrink_factor=7)
    models = [
        correct_bias_field(
            brain, tmp_path / f"{n}.ome.zarr", params, parts=n,
            field_path=tmp_path / f"field_{n}.ome.zarr",
        )
        for n in (1, parts)
    ]  # fmt: skip
    for name in ("plane_gain", "plane_quantiles", "section_coefficients", "global_coefficients"):
        np.testing.assert_array_equal(*(getattr(model, name) for model in models))
    assert models[0].tissue_fraction > 0.2 and models[0].plane_quantiles.size
    for stem in ("", "field_"):
        assert_same(tmp_path / f"{stem}1.ome.zarr", tmp_path / f"{stem}{parts}.ome.zarr")


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 3])
def test_an_aligned_brain_by_parts_has_the_same_files(brain, tmp_path, parts):
    tilt = np.deg2rad(4)
    matrix = np.eye(4)
    matrix[:2, :2] = [[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]]
    for n in (1, parts):
        apply_to_volume(
            open_image(brain), tmp_path / f"{n}.ome.zarr", matrix, {}, parts=n,
            resolutions_um=[25.0, 50.0],
        )  # fmt: skip
    assert open_image(tmp_path / "1.ome.zarr").array.shape[0] > 512
    assert_same(tmp_path / "1.ome.zarr", tmp_path / f"{parts}.ome.zarr")


def fail(planes):
    """End in the way that the place of the part says; parts without any work for long."""
    match planes.start // 256:
        case 1:
            raise InputError("slice_z07.ome.zarr: planes 3-4 cannot be read")
        case 2:
            os.kill(os.getpid(), signal.SIGKILL)
        case 3:
            raise DeviceMemoryError("out of device memory")
        case 4:
            raise MemoryError("no room")
    time.sleep(600)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "kind", "text", "status"),
    [
        (1, LinumpyError, "planes 256 to 511: slice_z07.ome.zarr: planes 3-4 cannot", FAILED),
        (2, MemoryError, "planes 512 to 767: its process was killed", HOST_MEMORY),
        (3, DeviceMemoryError, "planes 768 to 1023: out of device memory", DEVICE_MEMORY),
        (4, MemoryError, "planes 1024 to 1279: no room", HOST_MEMORY),
    ],
)
def test_a_part_that_fails_is_named_and_ends_the_others(number, kind, text, status):
    began_s = time.monotonic()
    parts = [slice(0, 256), slice(256 * number, 256 * (number + 1))]
    with pytest.raises(kind, match=text) as found, depth_parts(CPU, 2) as processes:
        processes.run(fail, parts)
    assert exit_status(found.value) == status
    # The other part would sleep for ten minutes.
    assert time.monotonic() - began_s < 300


@pytest.mark.slow
def test_a_killed_part_leaves_no_brain(brain, tmp_path, monkeypatch):
    output = tmp_path / "out" / "b.ome.zarr"
    run = DepthParts.run

    def killed(self, work, items, **rest):
        if type(work).__name__ == "_Correcting":
            self._workers[1]._process.kill()
        return run(self, work, items, **rest)

    monkeypatch.setattr(DepthParts, "run", killed)
    with pytest.raises(MemoryError, match="planes 256 to 529: its process was killed"):
        correct_bias_field(
            brain, output, BiasParams(engine="linumpy", shrink_factor=8, mode="global"), parts=2
        )
    assert list(output.parent.iterdir()) == []


def test_parts_are_whole_layers_and_cover_all():
    parts = DepthParts()
    assert parts.divide(530) == [slice(0, 530)]
    parts.count = 2
    assert parts.divide(530) == [slice(0, 256), slice(256, 530)]
    assert parts.divide(200) == [slice(0, 200)]
    parts.count = 4
    found = parts.divide(2400)
    assert [part.start % 256 for part in found] == [0] * 4 and found[-1].stop == 2400
    assert all(a.stop == b.start for a, b in zip(found, found[1:], strict=False))
    assert max(part.stop - part.start for part in found) <= 3 * 256
    assert parts.divide(530, 252) == [slice(0, 252), slice(252, 504), slice(504, 530)]


@pytest.mark.parametrize(
    ("count", "shape", "parts_of_layers"),
    [
        (1, (530, 1300), [3]),
        (3, (530, 1300), [1, 1, 1]),
        (5, (530, 1300), [2, 2, 1]),
        (40, (530, 1300), [3, 3, 1]),
        (40, (760, 1300), [3, 3, 3]),
        (8, (306, 1300), [3, 1]),
        (8, (356, 1300), [3, 1]),
        (8, (456, 1300), [3, 3]),
        (5, (456, 1300), [3, 2]),
        (4, (250, 500), [1]),
        (3, (250, 2048), [2]),
    ],
)
def test_rows_divide_the_deepest_layers_where_processes_are_more(count, shape, parts_of_layers):
    """Bands of 512 rows at least; one process takes all layers."""
    parts = DepthParts()
    parts.count = count
    found = parts.divide_rows(shape)
    if count == 1:
        assert found == [(slice(0, 530), slice(0, 1300))]
        return
    starts = [planes.start for planes, _ in found]
    assert [starts.count(256 * k) for k in range(len(parts_of_layers))] == parts_of_layers
    assert len(found) <= count
    assert sum((z.stop - z.start) * (i.stop - i.start) for z, i in found) == shape[0] * shape[1]
    assert all(rows.start % 512 == 0 for _, rows in found)
    # As many processes as parts divide it alike.
    parts.count = len(found)
    assert parts.divide_rows(shape) == found


@pytest.mark.slow
def test_a_part_by_rows_that_fails_is_named():
    part = PlanesAndRows(slice(256, 512), slice(512, 1024))
    with pytest.raises(LinumpyError) as found, depth_parts(CPU, 2) as processes:
        processes.run(refuse, [part])
    assert str(found.value) == "planes 256 to 511, rows 512 to 1023: cannot be read"


def refuse(part):
    raise InputError("cannot be read")


@pytest.mark.parametrize(
    ("shape", "cores", "free_gib", "expected"),
    [
        ((2400, 1500, 1500), 16, 64, 8),
        ((600, 1500, 1500), 16, 64, 8),
        ((450, 1300, 1300), 16, 64, 6),
        ((306, 1300, 1300), 16, 64, 4),
        ((450, 1300, 1300), 8, 64, 4),
        ((450, 1300, 1300), 6, 64, 3),
        ((450, 1300, 1300), 16, 5, 2),
        ((450, 400, 400), 16, 64, 1),
    ],
)
def test_rows_make_as_many_parts_as_cores_and_memory_have_room_for(
    shape, cores, free_gib, expected, monkeypatch
):
    monkeypatch.setattr(module, "default_workers", lambda device: cores)
    monkeypatch.setattr(module, "granted_host_bytes", lambda: free_gib << 30)
    assert usual_parts(CPU, shape, by_rows=True) == expected


@pytest.mark.parametrize(
    ("device", "shape", "cores", "free_gib", "share", "expected"),
    [
        (CPU, (2400, 1500, 1500), 16, 64, 1.0, 8),
        (CPU, (2400, 1500, 1500), 32, 64, 1.0, 10),
        (CPU, (2400, 1500, 1500), 4, 64, 1.0, 2),
        (CPU, (2400, 1500, 1500), 3, 64, 1.0, 1),
        (CPU, (2400, 1500, 1500), 16, 8, 1.0, 3),
        (CPU, (2400, 1500, 1500), 16, 1, 1.0, 1),
        (CPU, (600, 300, 300), 16, 64, 1.0, 1),
        (Device("cuda"), (2400, 1500, 1500), 3, 64, 1.0, 3),
        (Device("cuda", count=4), (2400, 1500, 1500), 2, 64, 1.0, 8),
        (Device("cuda", count=4), (2400, 1500, 1500), 3, 64, 1.0, 10),
        (Device("cuda", count=4), (2400, 400, 400), 2, 64, 1.0, 2),
        (Device("cuda", count=2), (2400, 1500, 1500), 3, 64, 0.5, 2),
        (Device("cuda", count=4), (2400, 1500, 1500), 0, 64, 1.0, 4),
        (Device("cuda", count=4), (500, 1000, 1000), 3, 64, 1.0, 2),
        (Device("cuda", count=4), (500, 500, 500), 3, 64, 1.0, 1),
        (Device("cuda", count=2), (2400, 1500, 1500), 3, 8, 1.0, 2),
        (Device("cuda", count=8), (2400, 1500, 1500), 3, 8, 1.0, 8),
    ],
)
def test_parts_follow_size_devices_and_memory(
    device, shape, cores, free_gib, share, expected, monkeypatch
):
    """`cores` are processes that a GPU has room for."""
    monkeypatch.setattr(module, "default_workers", lambda device: cores)
    monkeypatch.setattr(worker_process, "processes_a_gpu", lambda **_: cores)
    for place in (module, worker_process):
        monkeypatch.setattr(place, "granted_host_bytes", lambda: free_gib << 30)
    monkeypatch.setattr(worker_process, "batch_share", lambda: share)
    assert usual_parts(device, shape) == expected
