"""Live phantom: the same tiles, in the microscope's rhythm, with faults where asked."""

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.phantom.fault_flag import parse_fault
from linumpy.phantom.live import write_live
from tests.phantom.conftest import acquire, micro, read_acquisition


@pytest.mark.slow
@pytest.mark.parametrize("headers_last", [False, True])
def test_tiles_are_those_of_the_batch_run_and_grow_in_order(tmp_path, no_brain, headers_last):
    params = micro()
    batch = acquire(tmp_path / "batch", params, 3, template=no_brain)
    raw, seen = tmp_path / "live" / "raw", []

    def watch(seconds):
        bins = sorted(p for p in raw.rglob("image_00000.bin"))
        headers = sorted(p for p in raw.rglob("info.txt"))
        seen.append((seconds, len(bins), sum(p.stat().st_size for p in bins), len(headers)))

    write_live(
        tmp_path / "live", params, 3, speed=10, headers_last=headers_last, template=no_brain,
        sleep=watch,
    )  # fmt: skip
    files = [p for p in (tmp_path / "batch" / "raw").rglob("*") if p.suffix in (".bin", ".txt")]
    assert len(files) == 16
    for path in files:
        twin = raw / path.relative_to(tmp_path / "batch" / "raw")
        assert twin.read_bytes() == path.read_bytes()
    # Eight parts and a move a tile, one cut between the slices; headers lag where asked.
    assert [s for s in seen if s[0] == 6.0] == [(6.0, 4, 4 * batch.raw(0, 0, 0).nbytes, 4)]
    assert len(seen) == 8 * 9 + 1
    assert seen[0][1:] == (1, batch.raw(0, 0, 0).nbytes // 8, 0 if headers_last else 1)
    assert sum(s[0] for s in seen) == pytest.approx(8 * (42 * 26 / 80e3 + 0.5) / 10 + 6)


@pytest.mark.slow
def test_faults_are_where_they_were_asked_for(tmp_path, no_brain):
    params = micro(n_slices=3)
    names = ("missed_cut:2", "tile_short:0:1:0", "dead_tile:0:0:1", "missing_tile:1:0:0")
    faults = [parse_fault(name, params) for name in names]
    write_live(
        tmp_path, params, 3, speed=10, faults=faults, template=no_brain, sleep=lambda s: None
    )
    found = read_acquisition(tmp_path, params)
    whole = 4 * params.nz * (params.nx + params.n_extra) * params.ny
    sizes = {p.parent.name: p.stat().st_size for p in tmp_path.rglob("image_00000.bin")}
    assert sizes.pop("tile_x01_y00_z00") == int(0.6 * whole)
    assert set(sizes.values()) == {whole} and len(sizes) == 10
    assert "tile_x00_y00_z01" not in sizes
    assert not found.raw(0, 0, 1).any() and found.raw(0, 0, 0).any()
    faces = [s["face_um"] for s in found.truth["slices"]]
    assert faces[2] == faces[1] and faces[1] - faces[0] > 150
    assert found.truth["faults"][0] == {"kind": "missed_cut", "slice": 2, "tile": None}


@pytest.mark.slow
def test_defocus_dims_its_tile_alone(tmp_path, brain):
    params = micro(n_slices=1)
    for name, faults in (("clean", ()), ("fault", (parse_fault("defocus:0:1:1", params),))):
        write_live(
            tmp_path / name, params, 3, speed=10, faults=faults, template=brain,
            sleep=lambda s: None,
        )  # fmt: skip
    clean, faulty = (read_acquisition(tmp_path / n, params) for n in ("clean", "fault"))
    assert np.array_equal(clean.raw(0, 0, 0), faulty.raw(0, 0, 0))
    assert clean.raw(0, 1, 1)[15:].mean() > 1.05 * faulty.raw(0, 1, 1)[15:].mean()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fire:1", "expected one of defocus"),
        ("double_cut:0", "expected a slice from 1 to 1"),
        ("dark_tile:0:5:0", "no such tile of 2 x 2"),
        ("wedge:1:0:0", "of a tile's fault alone"),
    ],
)
def test_fault_that_is_none_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_fault(text, micro())
