"""Tiles count once they are complete; a half-written one is never read."""

import json
import os
import pickle
from dataclasses import asdict

import pytest

from linumpy.core.errors import InputError
from linumpy.follow.state import KEPT_LINES, NOW_NAME, Record
from linumpy.follow.verdict import ADVICE, Reason, Verdict
from linumpy.follow.watch import Progress, Watcher
from linumpy.report.live_data import read_now

INFO = (
    "Scan info\nnx: 2\nny: 3\nn_extra: 1\nwidth: 20\nheight: 30\ntop_z: 0\nbottom_z: 4\n"
    "stage_x_pos_mm: {0}\nstage_y_pos_mm: 0.0\n"
)
WHOLE = 4 * 5 * 3 * 3


def write(root, slice_id, ix, iy=0, *, size=WHOLE, header=True):
    name = f"tile_x{ix:02d}_y{iy:02d}_z{slice_id:02d}"
    folder = root / f"slice_z{slice_id:02d}" / "tiles" / name
    folder.mkdir(parents=True, exist_ok=True)
    if header:
        (folder / "info.txt").write_text(INFO.format(ix * 0.02))
    (folder / "image_00000.bin").write_bytes(bytes(size))


def names(found):
    return [tile.name for tile in found.tiles]


def test_last_tile_counts_once_it_is_whole_and_settled(tmp_path):
    watcher = Watcher(tmp_path, tiles_per_slice=2)
    write(tmp_path, 0, 0)
    watcher.poll(0.0)
    assert watcher.finished(0, 50.0) is None  # one of two
    write(tmp_path, 0, 1, size=WHOLE - 4)
    watcher.poll(10.0)
    assert watcher.finished(0, 20.0) is None  # half written, however long ago
    write(tmp_path, 0, 1)
    watcher.poll(21.0)
    assert watcher.finished(0, 22.9) is None
    found = watcher.finished(0, 23.0)
    assert names(found) == ["tile_x00_y00_z00", "tile_x01_y00_z00"]
    assert (found.short, found.missing, found.n_missing) == ({}, (), 0)
    assert found.last_change_s == 21.0


def test_duration_is_that_of_the_files_and_not_of_the_looks(tmp_path):
    for ix, time_s in enumerate((1000.5, 1020.0)):
        write(tmp_path, 0, ix)
        for path in tmp_path.rglob(f"tile_x{ix:02d}*/*"):
            os.utime(path, (time_s, time_s))
    watcher = Watcher(tmp_path, tiles_per_slice=2)
    watcher.poll(0.0)
    assert watcher.finished(0, 2.0).duration_s == 19.5


def test_metadata_state_the_number_of_tiles(tmp_path):
    (tmp_path / "slice_z00").mkdir()
    (tmp_path / "slice_z00" / "metadata.json").write_text('{"n_tiles": 3}')
    watcher = Watcher(tmp_path, tiles_per_slice=1)
    for ix in range(3):
        write(tmp_path, 0, ix)
        watcher.poll(10.0 * ix)
        found = watcher.finished(0, 10.0 * ix + 5)
        assert (found is None) == (ix < 2)


def test_samples_before_their_header_wait_for_it(tmp_path):
    watcher = Watcher(tmp_path, tiles_per_slice=1)
    write(tmp_path, 0, 0, header=False)
    watcher.poll(0.0)
    assert watcher.finished(0, 30.0) is None
    write(tmp_path, 0, 0)
    watcher.poll(31.0)
    assert names(watcher.finished(0, 33.0)) == ["tile_x00_y00_z00"]


def test_missing_and_short_tiles_are_named_at_the_last_place_of_the_slice_before(tmp_path):
    watcher = Watcher(tmp_path, tiles_per_slice=4)
    for ix in range(4):
        write(tmp_path, 0, ix)
        watcher.poll(float(ix))
    assert len(watcher.finished(0, 10.0).tiles) == 4
    watcher.done(0)
    for now, ix in ((11.0, 0), (12.0, 2), (13.0, 3)):
        write(tmp_path, 1, ix, size=100 if ix == 2 else WHOLE)
        watcher.poll(now)
    assert watcher.finished(1, 14.0) is None
    found = watcher.finished(1, 15.0)
    assert names(found) == ["tile_x00_y00_z01", "tile_x03_y00_z01"]
    assert found.missing == ((1, 0),) and found.n_missing == 1
    assert list(found.short) == [(2, 0)] and "100 bytes, expected 180" in found.short[2, 0]


def test_slice_after_one_without_its_last_tile_waits_for_all(tmp_path):
    """Seen to fail where the tile that came last in the slice before was taken for the last one."""
    watcher = Watcher(tmp_path)
    corners = [(0, 0), (0, 1), (1, 0), (1, 1)]
    clock = 0.0
    for slice_id, tiles in enumerate((corners, corners[:3], corners)):
        for ix, iy in tiles:
            write(tmp_path, slice_id, ix, iy)
            watcher.poll(clock := clock + 10)
            found = watcher.finished(slice_id, clock + 5)
            if slice_id:
                assert (found is None) == ((ix, iy) != (1, 1))
        if slice_id == 1:
            found = watcher.finished(slice_id, clock + 100)
            assert found.missing == ((1, 1),)
        elif slice_id == 0:
            assert watcher.finished(slice_id, clock + 100).n_missing == 0
        watcher.done(slice_id)
    assert found.n_missing == 0 and len(found.tiles) == 4


GRID = [(ix, iy) for ix in range(3) for iy in range(2)]


def scan(watcher, root, slice_id, keys, start_s):
    """Write tiles ten seconds apart; return how many were there when the slice was over."""
    for count, (ix, iy) in enumerate(keys, 1):
        write(root, slice_id, ix, iy)
        watcher.poll(now_s := start_s + 10 * count)
        found = watcher.finished(slice_id, now_s + 5)
        if found is not None or count == len(keys):
            found = found or watcher.finished(slice_id, now_s + 100)
            watcher.done(slice_id)
            return count, found


@pytest.mark.parametrize("lacks", [GRID[4:], GRID[:2], GRID[1::2]], ids=["last", "first", "column"])
def test_slice_after_one_without_a_whole_row_is_waited_for(tmp_path, lacks):
    """Seen to fail where the grid of the slice before was taken as it was found."""
    watcher = Watcher(tmp_path)
    part = [key for key in GRID if key not in lacks]
    shown = [scan(watcher, tmp_path, n, k, 1000.0 * n) for n, k in enumerate((GRID, part, GRID))]
    assert shown[1][1].missing == tuple(sorted(lacks))
    assert shown[2][0] == 6 and shown[2][1].n_missing == 0


def test_mosaic_that_is_smaller_twice_is_a_smaller_one(tmp_path):
    watcher = Watcher(tmp_path)
    slices = (GRID, GRID[:4], GRID[:4], GRID[:4])
    shown = [scan(watcher, tmp_path, n, k, 1000.0 * n)[1] for n, k in enumerate(slices)]
    assert [found.n_missing for found in shown] == [0, 2, 2, 0]


def test_first_slice_without_a_row_tells_no_grid(tmp_path):
    """Seen to fail where its tiles outdid the number that the user gave."""
    watcher = Watcher(tmp_path, tiles_per_slice=6)
    shown = [scan(watcher, tmp_path, n, k, 1000.0 * n) for n, k in enumerate((GRID[:4], GRID))]
    assert [(count, found.n_missing) for count, found in shown] == [(4, 2), (6, 0)]


def test_slice_without_its_last_tile_is_over_when_the_next_begins_or_all_is_quiet(tmp_path):
    watcher = Watcher(tmp_path, tiles_per_slice=3, quiet_s=40)
    write(tmp_path, 0, 0)
    write(tmp_path, 0, 1)
    watcher.poll(0.0)
    assert watcher.finished(0, 39.0) is None
    assert watcher.finished(0, 40.0).n_missing == 1
    write(tmp_path, 1, 0)
    watcher.poll(39.5)
    assert watcher.finished(0, 39.5).n_missing == 1


def test_progress_counts_complete_tiles_of_the_slice_under_way(tmp_path):
    watcher = Watcher(tmp_path, tiles_per_slice=3)
    assert watcher.progress(0.0) is None
    write(tmp_path, 0, 0)
    write(tmp_path, 0, 1, size=WHOLE - 4)
    watcher.poll(0.0)
    assert watcher.progress(1.0) == Progress(0, 0, 3)
    assert watcher.progress(2.0) == Progress(0, 1, 3)
    watcher.done(0)
    assert watcher.progress(2.0) is None
    with Record(tmp_path) as record:
        for progress, is_judging in ((Progress(1, 2, 3), False), (Progress(1, 3, 3), True)):
            record.tell_progress(progress, is_judging=is_judging)
            assert read_now(tmp_path / NOW_NAME) == asdict(progress) | {"is_judging": is_judging}
        record.tell_progress(None)
        assert read_now(tmp_path / NOW_NAME) is None


def test_record_cuts_off_a_half_line_and_judges_nothing_twice(tmp_path):
    reason = Reason("double_cut", "stop", "400 um", value=400.0, limit=350.0, unit="um")
    with Record(tmp_path) as record:
        record.add(Verdict(0))
        record.add(Verdict(1, (reason,), 4, 4.249))
        with pytest.raises(ValueError, match="judged before"):
            record.add(Verdict(1))
        with pytest.raises(InputError, match="another linum_follow.py writes here"):
            Record(tmp_path)
    path = tmp_path / "verdicts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"slice": 2, "verd')
    with Record(tmp_path) as record:
        assert record.judged == {0, 1} and path.read_bytes() == whole
        record.add(Verdict(2))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["slice"], line["verdict"]) for line in lines] == [
        (0, "pass"), (1, "stop"), (2, "pass"),
    ]  # fmt: skip
    assert lines[1]["reasons"] == [
        {
            "kind": "double_cut", "level": "stop", "text": "400 um", "tiles": [], "value": 400.0,
            "limit": 350.0, "unit": "um", "advice": ADVICE["double_cut"],
        }
    ]  # fmt: skip
    assert lines[1]["seconds_after_last_tile"] == 4.25


def test_record_that_is_none_is_refused(tmp_path):
    (tmp_path / "verdicts.jsonl").write_text('{"slice": 0}\nwords\n')
    with pytest.raises(InputError, match="line 2: not a verdict"):
        Record(tmp_path)


def test_state_hardly_grows_with_the_number_of_slices(tmp_path):
    watcher = Watcher(tmp_path, tiles_per_slice=4)
    sizes = []
    for slice_id in range(30):
        for ix in range(4):
            write(tmp_path, slice_id, ix)
        watcher.poll(10.0 * slice_id)
        watcher.poll(10.0 * slice_id + 5)
        assert len(watcher.finished(slice_id, 10.0 * slice_id + 5).tiles) == 4
        watcher.done(slice_id)
        sizes.append(len(pickle.dumps(watcher)))
    # Numbers of slices alone are kept; a tile takes some 300 bytes.
    assert (sizes[-1] - sizes[9]) / 20 < 8


def test_record_keeps_the_last_lines_and_knows_all_slices(tmp_path):
    with Record(tmp_path) as record:
        for slice_id in range(50):
            record.add(Verdict(slice_id))
        assert [line["slice"] for line in record.lines] == list(range(50 - KEPT_LINES, 50))
        assert record.judged == set(range(50))
    with Record(tmp_path) as record:
        assert [line["slice"] for line in record.lines] == list(range(50))
        with pytest.raises(ValueError, match="judged before"):
            record.add(Verdict(3))
