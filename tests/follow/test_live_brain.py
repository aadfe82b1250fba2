"""The growing brain holds each slice where it was cut, and can be read at any time."""

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

from linumpy.follow.live_brain import LIVE_NAME, LiveBrain
from linumpy.io.omezarr import open_image
from tests.follow.block import N_PLANES, make_block, volume_of, write_slice

DEPTHS_PX = {0: 0, 1: 20, 2: 60, 3: 60, 5: 100}
"""A double cut before slice 2, none before slice 3, and no slice 4."""
OFF_UM = {0: (0.0, 0.0), 1: (40.0, -20.0), 2: (0.0, 20.0), 3: (0.0, 0.0), 5: (-20.0, 0.0)}


@pytest.fixture(scope="module")
def block():
    return make_block()


@pytest.fixture(scope="module")
def lines(block):
    """What verdicts tell of the slices."""
    ids = list(DEPTHS_PX)
    out = [{"slice": ids[0], "figures": {}}]
    for before, slice_id in zip(ids, ids[1:], strict=False):
        cut = 10.0 * (DEPTHS_PX[slice_id] - DEPTHS_PX[before])
        figures = {"before": before, "cut_um": cut, "cut_clear": True}
        out.append({"slice": slice_id, "figures": figures})
    return out


@pytest.fixture(scope="module")
def sliced(block, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sliced")
    for slice_id, depth in DEPTHS_PX.items():
        write_slice(folder, slice_id, block[depth : depth + N_PLANES], OFF_UM[slice_id])
    return folder


@pytest.fixture
def brain(sliced, tmp_path):
    return LiveBrain(tmp_path, lambda slice_id: volume_of(sliced, slice_id))


def means(block, z, side):
    n, m1, m2 = (n // k for n, k in zip(block.shape, (z, side, side), strict=True))
    return block.reshape(n, z, m1, side, m2, side).mean(axis=(1, 3, 5))


def pieces(path, level):
    """Image and mask of a level, without the empty rim."""
    image = open_image(path)
    valid = zarr.open_group(path, mode="r")[f"labels/valid/{level}"][:]
    n = 80 >> level
    rim = 64 >> level
    inner = (slice(None), slice(rim, rim + n), slice(rim, rim + n))
    assert valid.sum() == valid[inner].sum()
    return image.arrays[level][:][inner], valid[inner]


@pytest.mark.slow
def test_slices_lie_where_they_were_cut(brain, block, lines):
    brain.grow(lines)
    placed = {p.slice_id: p for p in brain.slices()}
    assert list(placed) == list(DEPTHS_PX)
    for slice_id, place in placed.items():
        assert place.depth_um == pytest.approx(10.0 * DEPTHS_PX[slice_id], abs=3)
        assert place.shift_um == pytest.approx(tuple(-k for k in OFF_UM[slice_id]), abs=4)
    for level, (z, side) in enumerate([(1, 2), (2, 4), (4, 8)]):
        data, valid = pieces(brain.path, level)
        truth = means(block[:160], z, side)
        assert valid.mean() > 0.95
        assert data.shape == truth.shape
        np.testing.assert_allclose(data[valid > 0], truth[valid > 0], rtol=1e-5)
        assert not data[valid == 0].any()
    image = open_image(brain.path)
    assert image.level_scales_um == ((10.0, 20.0, 20.0), (20.0, 40.0, 40.0), (40.0, 80.0, 80.0))
    # All levels share a corner.
    corners = {
        tuple(t - v / 2 for t, v in zip(*pair, strict=True))
        for pair in zip(image.level_translations_um, image.level_scales_um, strict=True)
    }
    assert corners == {(0.0, -64 * 20.0, -64 * 20.0)}


@pytest.mark.slow
def test_pairs_of_slices_that_are_solved_no_more_are_not_kept(brain, lines, monkeypatch):
    monkeypatch.setattr("linumpy.follow.live_brain.SOLVED_TOGETHER", 2)
    brain.grow(lines)
    assert [bool(p.pairs) for p in brain.slices()] == [False, False, True, True, True]
    assert [p.slice_id for p in brain.slices()] == list(DEPTHS_PX)


@pytest.mark.slow
def test_reader_meets_whole_shards_at_every_step(brain, block, lines, monkeypatch):
    truth = means(block[:160], 1, 2)
    brain.grow(lines[:2])
    seen, replace = [], Path.replace

    def look(path, target):
        data, valid = pieces(brain.path, 0)
        # The mask has as many planes as the image before the image tells of them.
        assert len(valid) >= len(data)
        valid = valid[: len(data)]
        np.testing.assert_allclose(data[valid > 0], truth[: len(data)][valid > 0], rtol=1e-5)
        # What was there stays there.
        assert valid[:80].all()
        seen.append(len(data))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", look)
    brain.grow(lines[:3])
    assert set(seen) == {80} and len(seen) > 10
    monkeypatch.undo()
    assert len(pieces(brain.path, 0)[0]) == 120


@pytest.mark.slow
def test_killed_at_any_step_it_ends_as_if_it_had_not_been(
    brain, sliced, lines, tmp_path, monkeypatch
):
    whole = LiveBrain(tmp_path / "whole", lambda slice_id: volume_of(sliced, slice_id))
    whole.path.parent.mkdir()
    whole.grow(lines[:2])
    brain.grow(lines[:2])
    replace, steps, last = Path.replace, [0], [-1]

    class Killed(BaseException):
        pass

    def killed(path, target):
        steps[0] += 1
        if steps[0] == last[0]:
            raise Killed
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    whole.grow(lines[:3])
    expected = {p.relative_to(whole.path): p.read_bytes() for p in files(whole.path)}
    count = steps[0]
    # While shards are made, while they are renamed, and between the shapes of two arrays.
    for step in (3, count // 4, 3 * count // 4, count - 2):
        steps[0], last[0] = 0, step
        with pytest.raises(Killed):
            brain.grow(lines[:3])
        assert [p.slice_id for p in brain.slices()] == [0, 1]
    last[0] = -1
    brain.grow(lines[:3])
    assert {p.relative_to(brain.path): p.read_bytes() for p in files(brain.path)} == expected


def files(path):
    return sorted(p for p in path.rglob("*") if p.is_file())


def test_unreadable_slice_is_left_out_and_reported(brain, sliced, lines, tmp_path, caplog):
    broken = tmp_path / "broken"
    broken.mkdir()
    volumes = {0: volume_of(sliced, 0), 1: broken}
    brain = LiveBrain(tmp_path, lambda slice_id: volumes[slice_id])
    brain.grow(lines[:2])
    assert [p.slice_id for p in brain.slices()] == [0]
    assert f"{tmp_path / LIVE_NAME}: lacks slice z01" in caplog.text


def test_something_else_of_its_name_is_kept(brain, lines, tmp_path, caplog):
    (tmp_path / LIVE_NAME).mkdir()
    (tmp_path / LIVE_NAME / "zarr.json").write_text(json.dumps({"attributes": {}}))
    brain.grow(lines[:1])
    assert "not a growing brain" in caplog.text
    assert [p.name for p in files(tmp_path / LIVE_NAME)] == ["zarr.json"]
