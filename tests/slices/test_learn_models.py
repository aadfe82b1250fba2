import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from linumpy.core import device as device_policy
from linumpy.core import worker_process
from linumpy.core.device import CPU, Device, like
from linumpy.core.errors import InputError
from linumpy.core.leases.lease import Ask
from linumpy.geometry.resample import apply_axis_weights, axis_weights
from linumpy.slices import engine, evidence_lanes, slice_evidence
from linumpy.slices import learn_models as learning
from linumpy.slices.learn_models import learn_models
from linumpy.slices.register_stage import RegisterTiles
from linumpy.slices.tile_stages import ResampleMosaicGrid
from linumpy.stage_params.slices import LearnParams, SliceParams

PARAMS = SliceParams.from_values({"compensate_psf_enabled": False})
FOCAL, FLAT = "detect_focal_curvature", "fix_illumination_3d"


def learn(grids, device, params=PARAMS, learn=None):
    return learn_models(grids, params, learn, device=device)


def truth_on_grid(tiny, name):
    """The phantom's field on the resampled tiles, averaged about voxel centres."""
    record = json.loads((tiny / "truth/truth.json").read_text())
    field = np.load(tiny / "truth/fields.npz")[name].astype(float)
    step = 10.0 / record["voxel_um"][1]
    n = int(field.shape[0] / step)
    matrix = axis_weights(field.shape[0], n, step)
    return apply_axis_weights(field[None], [None, matrix, matrix])[0]


@pytest.mark.slow
def test_surface_and_flat_field_match_the_phantoms(tiny_grids, tiny, device):
    models = learn(tiny_grids, device)
    surface = models.fields[FOCAL].surface_um - truth_on_grid(tiny, "focal_um")
    i, j = np.mgrid[: surface.shape[0], : surface.shape[1]]
    plane = np.stack([np.ones(surface.size), i.ravel(), j.ravel()], axis=1)
    rest = surface.ravel() - plane @ np.linalg.lstsq(plane, surface.ravel(), rcond=None)[0]
    assert np.sqrt((rest**2).mean()) < 2.0
    flat = truth_on_grid(tiny, "flat_field")
    ratio = (
        models.fields[FLAT].flat_field
        / models.fields[FLAT].flat_field.mean()
        / (flat / flat.mean())
    )
    assert np.sqrt(((ratio - 1) ** 2).mean()) < 0.02
    assert models.fields[FOCAL].n_tiles == models.fields[FLAT].n_tiles == 27


@pytest.mark.slow
def test_fewer_tiles_come_from_evenly_spaced_slices_three_at_least(tiny_grids, device, monkeypatch):
    from linumpy.slices.learn_models import _candidate, _choose

    slices = [_candidate(path, None) for path in tiny_grids]
    assert [s.slice_id for s in _choose(slices, 9, 1)] == [1]
    assert [s.slice_id for s in _choose(slices, 18, 1)] == [0, 2]
    assert [s.slice_id for s in _choose(slices, 27, 1)] == [0, 1, 2]
    assert [s.slice_id for s in _choose(3 * slices, 9, 3)] == [1, 1, 1]
    monkeypatch.setattr(learning, "LEAST_SLICES", 1)
    assert learn(tiny_grids, device, learn=LearnParams(9)).fields[FOCAL].n_tiles == 9


@pytest.mark.slow
@pytest.mark.parametrize(("lanes", "apart"), [(2, False), (2, True), (3, True)])
def test_models_have_the_bits_of_slices_measured_one_by_one(
    tiny_grids, device, lanes, apart, monkeypatch
):
    params = SliceParams.from_values({})
    # One slice teaches the first surface; the others are measured while they are flattened.
    monkeypatch.setattr(learning, "FIRST_TILES", 9)
    alone = learn_models(tiny_grids, params, device=device, lanes=1)
    made = learn_models(tiny_grids, params, device=device, lanes=lanes, apart=apart)
    for name, model in alone.fields.items():
        assert_same(made.fields[name], model)
    assert_same(made.axial, alone.axial)
    assert_same(made.scan, alone.scan)
    assert made.fields[FOCAL].n_tiles == 27 and made.axial.n_tiles > 20


@pytest.mark.slow
def test_lanes_in_threads_keep_tiles_in_the_whole_budget(tiny_grids, monkeypatch):
    sizes, make = [], slice_evidence.TileStore

    def made(nbytes):
        sizes.append(nbytes)
        return make(nbytes)

    monkeypatch.setattr(slice_evidence, "TileStore", made)
    learn_models(tiny_grids, PARAMS, lanes=2, apart=False)
    everything = list(sizes)
    assert len(everything) == len(tiny_grids) > 2
    monkeypatch.setattr(engine, "DEFAULT_BUDGET_BYTES", sum(everything))
    sizes.clear()
    learn_models(tiny_grids, PARAMS, lanes=2, apart=False)
    assert sorted(sizes) == sorted(everything)


@pytest.mark.parametrize(
    ("cores", "slices", "tiles", "memory_gib", "processes", "threads"),
    [
        (16, 9, 160, 64, 5, 3),
        (16, 9, 80, 64, 5, 3),
        (16, 9, 16, 64, 2, 8),
        (16, 3, 400, 64, 3, 5),
        (4, 9, 160, 64, 0, None),
        (16, 9, 160, 6, 3, 2),
        # Four processes with three threads each would leave one slice for a second turn.
        (16, 5, 180, 11, 5, 2),
        (16, 12, 400, 64, 4, 4),
    ],
)
def test_many_cores_measure_slices_in_processes(
    monkeypatch, cores, slices, tiles, memory_gib, processes, threads
):
    """With as many as cores, slices, tiles and memory are for, which divide the cores."""
    started, room = [], []

    class Recorded(nullcontext):
        def __init__(self, setting, begin):
            super().__init__()
            started.append(setting.threads)

    monkeypatch.setattr(evidence_lanes, "WorkerProcess", Recorded)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(device_policy, "granted_host_bytes", lambda: memory_gib << 30)
    evidence_lanes.Lanes(lambda _, sharing=1: room.append(sharing), CPU, slices, tiles, 128 << 20)
    assert started == [threads] * max(0, processes - 1)
    assert room == [max(1, processes)]


@pytest.mark.parametrize(
    ("gpus", "each", "slices", "tiles", "memory_gib", "batches", "expected", "sharing"),
    [
        (4, 3, 5, 180, 64, 1, [1, 2, 3, 0], 2),
        (4, 3, 12, 450, 64, 1, [1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3], 3),
        (4, 3, 12, 256, 64, 1, [1, 2, 3, 0, 1, 2, 3], 2),
        (2, 1, 12, 450, 64, 1, [1], 1),
        # Too little for a process.
        (2, 3, 12, 60, 64, 1, [], None),
        # Too little memory of a GPU, or of the host; the second try of a task.
        (2, 0, 12, 450, 64, 1, [1], 1),
        (4, 3, 12, 450, 16, 1, [1, 2, 3, 0, 1, 2, 3], 2),
        (4, 3, 12, 450, 64, 0.5, [1, 2, 3], 1),
    ],
)
def test_gpus_take_turns_to_measure_slices_each_in_its_process(
    monkeypatch, gpus, each, slices, tiles, memory_gib, batches, expected, sharing
):
    started, made, shares, asked = [], [], [], []

    class Recorded(nullcontext):
        def __init__(self, setting, begin):
            super().__init__()
            started.append(setting.gpu)
            assert setting.device == Device("cuda")

    monkeypatch.setattr(evidence_lanes, "WorkerProcess", Recorded)
    # Asking for cores or memory of a GPU would lease one alone.
    monkeypatch.setattr(evidence_lanes, "hold", asked.append)
    monkeypatch.setattr(worker_process, "processes_a_gpu", lambda **_: each * len(asked))
    monkeypatch.setattr(worker_process, "granted_host_bytes", lambda: memory_gib << 30)
    monkeypatch.setattr(worker_process, "batch_share", lambda: batches)
    monkeypatch.setattr(
        evidence_lanes, "share_of_gpu", lambda n: shares.append(n) or nullcontext(1 << 33)
    )
    several = Device("cuda", count=gpus)
    evidence_lanes.Lanes(made.append, several, slices, tiles, 128 << 20)
    assert asked == [Ask(count=gpus)]
    assert started == expected
    assert made == [Device("cuda")]
    assert shares == ([sharing] if expected else [])
    # One that is asked for divides tiles among all.
    evidence_lanes.Lanes(made.append, several, slices, tiles, 128 << 20, 1)
    assert made[1:] == [several]


def test_few_large_slices_are_worth_as_many_lanes_of_a_gpu_as_many_small_ones(monkeypatch):
    asked = []
    monkeypatch.setattr(evidence_lanes, "usual_overlap", lambda _, n: asked.append(n) or 1)
    for n_slices in (3, 12):
        evidence_lanes.Lanes(lambda _: None, Device("cuda"), n_slices, 384, 128 << 20)
    assert asked == [12, 12]


def assert_same(one, other):
    for name, value in vars(other).items():
        np.testing.assert_array_equal(getattr(one, name), value, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0, None])
def test_surface_of_few_slices_registers_as_well_as_that_of_all(
    tiny_grids, device, budget, monkeypatch
):
    whole = learn(tiny_grids, device)
    monkeypatch.setattr(learning, "FIRST_TILES", 9)
    few = learn_models(tiny_grids, PARAMS, device=device, budget_bytes=budget)
    change_um = few.fields[FOCAL].surface_um - whole.fields[FOCAL].surface_um
    assert 0 < np.sqrt((change_um**2).mean()) < 0.2
    ratio = few.fields[FLAT].flat_field / whole.fields[FLAT].flat_field
    assert np.sqrt(((ratio - 1) ** 2).mean()) < 0.002


@pytest.mark.slow
def test_gains_of_lines_are_seen_at_the_first_look(tiny_grids, device, monkeypatch):
    """Before there is a field; what registers tiles is given them, and no other of 1 % or more."""
    apply, rng = ResampleMosaicGrid.apply, np.random.default_rng(4)
    gain = np.exp(0.08 * rng.normal(size=200)).astype(np.float32)
    looks = []

    def striped(self, tile):
        if all(matrix is None for matrix in self._matrices):
            return tile  # It was in memory, striped.
        tile = apply(self, tile)
        lines = gain[: tile.data.shape[1], None]
        return replace(tile, data=tile.data * like(lines, tile.data))

    def register(**given):
        looks.append(given["line_gain"])
        return RegisterTiles(**given)

    monkeypatch.setattr(slice_evidence, "RegisterTiles", register)
    learn_models(tiny_grids, PARAMS, device=device, lanes=1)
    assert all(gain is None or np.log(gain).std() < 0.01 for gain in looks)
    monkeypatch.setattr(ResampleMosaicGrid, "apply", striped)
    learn_models(tiny_grids, PARAMS, device=device, lanes=1)
    found = np.log(looks[-1])
    # Half of it: waves of 8 lines and more are not in it. Flattening takes the longest.
    assert (found.mean(axis=1) - np.log(gain[: len(found)])).std() < 0.5 * 0.08
    assert found.std(axis=1).max() < 0.01


def test_what_is_switched_off_is_not_learned(tiny_grids, device):
    off = {"fix_curvature_enabled": False, "compensate_psf_enabled": False}
    models = learn(tiny_grids[:1], device, SliceParams.from_values(off))
    assert FOCAL not in models.fields and FLAT in models.fields


def test_grids_of_different_tiles_are_refused(tiny_grids, tmp_path, device):
    from linumpy.slices.single_stages import resample_grid

    other = tmp_path / "mosaic_grid_3d_z09.ome.zarr"
    resample_grid(tiny_grids[0], other, {"resolution": 20.0}, overwrite=False, device=device)
    with pytest.raises(InputError, match="differ in tile shape"):
        learn([*tiny_grids[1:], other], device)


@pytest.mark.parametrize("value", [0.0, -0.5, float("inf")])
def test_impossible_resolutions_are_refused(value):
    from linumpy.stage_params.slices import ResampleParams

    with pytest.raises(InputError, match="--resolution"):
        ResampleMosaicGrid(ResampleParams(value))
