"""Pairs measured in groups: the registration and the rating of all pairs in one process."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from linumpy.brain import register_pairwise as registering
from linumpy.brain.kept_slices import pair_workers
from linumpy.brain.output import register_folder
from linumpy.core import worker_process
from linumpy.core.device import CPU, Device
from linumpy.core.errors import InputError, LinumpyError
from linumpy.core.leases import lease
from linumpy.io.omezarr import create_image
from linumpy.io.slice_layout import volume_spec
from linumpy.quality import assess_slice_quality as assessing
from linumpy.quality import measure_pairs as measuring
from linumpy.quality.assess_folder import assess_folder
from linumpy.quality.measure_pairs import measure_pairs

from .test_assess_slice_quality import block, cut

IDS = (0, 1, 2, 3, 5, 6)
VALUES = {
    "moving_slice_first_index": 2,
    "assess_quality_sample_depth": 3,
    "registration_max_translation": 20,
    "registration_allowed_drifting_mm": 0.04,
}


@pytest.fixture(scope="module")
def brain(tmp_path_factory) -> Path:
    """Six slices, one missing between them, one 5 planes deeper than the interval says."""
    rng = np.random.default_rng(5)
    tissue, folder = block(5), tmp_path_factory.mktemp("brain")
    for k in IDS:
        data = cut(tissue, k, rng, rng.integers(-6, 7, 2), 5 * (k >= 2))
        described = {
            "kind": "slice", "slice_id": k, "slice_interval_um": 80.0, "interface_um": 120.0,
            "stage_to_array": "+x,+y", "nominal_positions": True,
            "stage_z_mm": 0.08 * k + 0.05 * (k >= 2),
        }  # fmt: skip
        spec = volume_spec(data.shape, (10.0, 10.0, 10.0), (120.0, 500.0, 700.0), described)
        path = folder / f"slices/slice_z{k:02d}.ome.zarr"
        path.parent.mkdir(exist_ok=True)
        with create_image(path, spec, overwrite=False, with_valid=True) as image:
            image.array[...] = data
            image.valid[...] = 1
    rows = [f"{a},{b},0,0,{0.0001 * b:.4f},0.00{b}" for a, b in zip(IDS, IDS[1:], strict=False)]
    header = "fixed_id,moving_id,x_shift,y_shift,x_shift_mm,y_shift_mm"
    (folder / "shifts_xy.csv").write_text("\n".join([header, *rows]) + "\n")
    used = [f"{k},true" for k in IDS]
    (folder / "slice_config.csv").write_text("\n".join(["slice_id,use", *used]) + "\n")
    return folder


def registered(brain: Path, out: Path, values=VALUES, config=None, **options) -> dict[str, bytes]:
    """Files of the registration and of the rating."""
    shifts = brain / "shifts_xy.csv"
    register_folder(
        brain / "slices", shifts, out / "register_slices.json", values, config=config, **options
    )
    assess_folder(
        *(brain / "slices", out / "assess_slice_quality.json", values),
        shifts=shifts, config_in=config, config_out=out / "rated.csv", **options,
    )  # fmt: skip
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


def groups(brain: Path, out: Path, size: int, values=VALUES, **options) -> Path:
    """Measure pairs in groups, each with the slices that it needs and its rows of the table."""
    lines = (brain / "shifts_xy.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    for start in range(0, len(IDS), size):
        own, needed = IDS[start : start + size], IDS[start : start + size + 2]
        slices = out / f"slices_{start}"
        slices.mkdir()
        for k in needed:
            name = f"slice_z{k:02d}.ome.zarr"
            (slices / name).symlink_to(brain / "slices" / name)
        given = [row for row in rows if int(row["moving_id"]) <= needed[-1]]
        measure_pairs(slices, out / "pairs", {**values, "shifts_rows": given}, ids=own, **options)
    return out / "pairs"


@pytest.fixture
def no_measurements(monkeypatch):
    """Fail where a pair is registered or compared, or the detail of a slice is looked at."""

    def measured(*args):
        raise AssertionError(f"measured again: {args[:2]}")

    monkeypatch.setattr(registering, "PairMatch", measured)
    monkeypatch.setattr(assessing, "_details", measured)
    monkeypatch.setattr(assessing.SliceComparison, "compare_from", measured)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "processes"), [(1, 1), (4, 1), (6, 3)])
def test_pairs_in_groups_give_the_bytes_of_all_in_one_process(
    brain, tmp_path, request, size, processes
) -> None:
    alone = registered(brain, tmp_path / "alone")
    assert {"register_slices.json", "register_slices_metrics.json", "rated.csv"} <= set(alone)
    model = json.loads(alone["register_slices.json"])
    assert sum(pair["accepted"] for pair in model["pairs"]) >= 6
    (tmp_path / "groups").mkdir()
    pairs = groups(brain, tmp_path / "groups", size, processes=processes)
    assert len(list(pairs.glob("register_pairs_z*.json"))) == -(-len(IDS) // size) * processes
    # What groups measured is all that is needed, but for what looks worse than good pairs do.
    request.getfixturevalue("no_measurements")
    assert registered(brain, tmp_path / "solved", pairs=pairs) == alone


@pytest.mark.slow
def test_single_slice_has_no_rows_of_shifts(brain, tmp_path) -> None:
    """Seen to fail with an empty table."""
    alone = tmp_path / "slices"
    alone.mkdir()
    (alone / "slice_z03.ome.zarr").symlink_to(brain / "slices/slice_z03.ome.zarr")
    measure_pairs(alone, tmp_path / "pairs", {**VALUES, "shifts_rows": []})
    stated = json.loads((tmp_path / "pairs/register_pairs_z03.json").read_text())
    assert [s["slice_id"] for s in stated["slices"]] == [3] and stated["pairs"] == []


def test_what_was_measured_under_other_conditions_is_measured_again(brain, tmp_path) -> None:
    (tmp_path / "groups").mkdir()
    pairs = groups(brain, tmp_path / "groups", 6)
    other = {**VALUES, "moving_slice_first_index": 4}
    alone = registered(brain, tmp_path / "alone", other)
    assert alone != registered(brain, tmp_path / "before")
    assert registered(brain, tmp_path / "solved", other, pairs=pairs) == alone
    # Without slice 3, slices 2 and 5 follow each other, which nobody measured.
    config = tmp_path / "slice_config.csv"
    config.write_text("slice_id,use\n" + "".join(f"{k},{k not in (3,)}\n" for k in IDS))
    alone = registered(brain, tmp_path / "alone 3", config=config)
    assert registered(brain, tmp_path / "solved 3", config=config, pairs=pairs) == alone


@pytest.mark.slow
def test_lacking_slices_and_damaged_files_are_named(brain, tmp_path) -> None:
    with pytest.raises(InputError, match="slices: has no volume of slice z04"):
        measure_pairs(brain / "slices", tmp_path / "pairs", VALUES, ids=[4])
    with pytest.raises(InputError, match=r"pairs: no register_pairs_z\*\.json"):
        registered(brain, tmp_path / "none", pairs=tmp_path / "pairs")
    (tmp_path / "groups").mkdir()
    pairs = groups(brain, tmp_path / "groups", 6, rating=False)
    path = pairs / "register_pairs_z00.json"
    document = json.loads(path.read_text())
    for name in ("shift_um", "centre_um", "offset"):
        damaged = json.loads(json.dumps(document))
        damaged["pairs"][0][name] = ["x"]
        path.write_text(json.dumps(damaged))
        with pytest.raises(InputError, match="register_pairs_z00.json: not measurements of pairs"):
            registered(brain, tmp_path / name, pairs=pairs)


@pytest.mark.parametrize(
    ("tasks", "cores", "processes", "threads"),
    [(None, 16, 3, 4), (4, 16, 2, 2), (4, 8, 1, 2), (2, 16, 3, 2), (1, 8, 3, 2)],
)
def test_processes_of_a_task_divide_its_share_of_a_gpu(
    monkeypatch, tasks, cores, processes, threads
) -> None:
    """Four tasks of a machine's GPU have a quarter of its cores each, and of its memory."""
    monkeypatch.setattr(lease, "_outcome", lease.Held(lease.Ask(tasks), ()))
    monkeypatch.setattr(worker_process, "free_gpu_bytes", lambda: 80 << 30)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert worker_process.processes_a_gpu() == processes
    assert pair_workers(Device("cuda"), max(1, processes)) == threads


@pytest.mark.parametrize(
    ("tasks", "cores", "host_gib", "share", "expected"),
    [
        (1, "", 64, 1.0, 3),
        (1, "4", 64, 1.0, 2),
        (1, "", 4, 1.0, 2),
        (1, "", 64, 0.5, 1),
        (1, "1", 64, 1.0, 0),
        (4, "1", 64, 1.0, 3),
        (4, "1", 4, 1.0, 2),
    ],
)
def test_processes_follow_cores_and_memory_of_the_task(
    monkeypatch, tasks, cores, host_gib, share, expected
) -> None:
    """A job is told its cores; tasks of one GPU divide them. A retry takes half of all."""
    monkeypatch.setattr(lease, "_outcome", lease.Held(lease.Ask(tasks), ()))
    monkeypatch.setattr(measuring, "processes_a_gpu", lambda: 3)
    monkeypatch.setattr(measuring, "granted_host_bytes", lambda: host_gib << 30)
    monkeypatch.setattr(measuring, "batch_share", lambda: share)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setenv("OMP_NUM_THREADS", cores)
    assert measuring._usual_processes(Device("cuda")) == expected
    assert measuring._usual_processes(CPU) == 1


@pytest.mark.slow
def test_what_fails_in_another_process_is_named(brain, tmp_path) -> None:
    slices = tmp_path / "slices"
    shutil.copytree(brain / "slices", slices)
    (chunk,) = (path for path in (slices / "slice_z06.ome.zarr/0/c").rglob("*") if path.is_file())
    chunk.write_bytes(b"?" * chunk.stat().st_size)
    shifts = brain / "shifts_xy.csv"
    with pytest.raises(LinumpyError, match="slice_z06"):
        measure_pairs(slices, tmp_path / "pairs", VALUES, shifts=shifts, processes=2)
    assert not (tmp_path / "pairs/register_pairs_z03.json").exists()


def test_overlaps_of_groups_are_those_of_all(brain, tmp_path):
    """Over the gap too few planes are shared. Without them, what was there before is removed."""
    shifts = brain / "shifts_xy.csv"

    def overlaps(folder: Path) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in folder.glob("overlap_attenuation_z*.npz")}

    whole = tmp_path / "whole"
    measure_pairs(brain / "slices", whole, VALUES, shifts=shifts, rating=False)
    found = overlaps(whole)
    assert found.keys() == {f"overlap_attenuation_z{k:02d}.npz" for k in (0, 1, 2, 5)}
    # No pair measures a depth here: slices are compared at the planes that match.
    offsets = [json.loads(p.read_text())["offset_px"] for p in sorted(whole.glob("over*z0?.json"))]
    assert offsets == [8, 13, 8, 8]
    assert overlaps(groups(brain, tmp_path, 2, rating=False)) == found
    divided = tmp_path / "divided"
    measure_pairs(brain / "slices", divided, VALUES, shifts=shifts, rating=False, processes=2)
    assert overlaps(divided) == found
    # Fewer processes leave nothing behind that more of them measured before.
    assert {p.stem for p in divided.glob("register_*.json")} == {
        "register_pairs_z00", "register_pairs_z03"
    }  # fmt: skip
    measure_pairs(brain / "slices", divided, VALUES, shifts=shifts, rating=False, processes=1)
    assert [p.stem for p in divided.glob("register_*.json")] == ["register_pairs_z00"]
    measure_pairs(brain / "slices", whole, VALUES, shifts=shifts, rating=False, overlaps=False)
    assert overlaps(whole) == {}
