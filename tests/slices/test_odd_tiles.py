"""Tiles that contradict their neighbours are excluded and flagged; others are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from linumpy.io.models import load_model
from linumpy.io.omezarr import open_image
from linumpy.metrics.stages import measure
from linumpy.slices.learn_models import AcquisitionModels
from linumpy.slices.odd_tiles import contradicting_tiles
from linumpy.slices.reconstruct_slice import reconstruct_slice
from linumpy.stage_params.slices import SliceParams
from linumpy.tiles.positions import TileRegistration

from .test_raw_source import Slice

SIDE = 4


def positions(
    odd: tuple[int, int], brightness: float = 100.0, side: int = SIDE
) -> TileRegistration:
    """Return tiles that all match but for one, whose overlaps have a given brightness."""
    keys = [(i, j) for i in range(side) for j in range(side)]
    pairs: list[dict[str, Any]] = []
    for i, j in keys:
        for other in ((i + 1, j), (i, j + 1)):
            if max(other) < side:
                bad = odd in ((i, j), other)
                mean = brightness if bad else 100.0
                pairs.append(
                    {
                        "a": [i, j], "b": list(other), "accepted": not bad,
                        "displacement_um": None, "expected_um": [0.0, 0.0],
                        "confidence": 0.1 if bad else 0.8,
                        "overlap_mean_a": mean, "overlap_mean_b": mean,
                    }
                )  # fmt: skip
    tiles = [
        {
            "ix": i,
            "iy": j,
            "stage_corner_um": (0.0, 0.0),
            "corner_um": (0.0, 0.0),
            "component": -1 if (i, j) == odd else 0,
            "n_pairs": 0,
        }
        for i, j in keys
    ]
    return TileRegistration(0, (10.0, 10.0, 10.0), (9, 9, 9), tiles, pairs, np.eye(2).tolist())


@pytest.mark.parametrize("odd", [(1, 2), (0, 1)])
def test_a_bright_tile_that_no_neighbour_bears_out_is_found(odd: tuple[int, int]) -> None:
    """Seen to fail where no tile contradicts."""
    assert contradicting_tiles(positions(odd)) == {odd}


def test_one_match_by_chance_is_outvoted_and_two_are_not() -> None:
    """Accepted, or clear and against the other pairs. Seen to fail where one match is enough."""
    for change in ({"accepted": True}, {"confidence": 0.6}):
        model = positions((1, 2))
        first, second, *_ = (n for n, p in enumerate(model.pairs) if p.confidence == 0.1)
        model.pairs[first] = replace(model.pairs[first], **change)
        assert contradicting_tiles(model) == {(1, 2)}
        model.pairs[second] = replace(model.pairs[second], **change)
        assert contradicting_tiles(model) == set()
    # At a border the other two are too few.
    model = positions((0, 1))
    odd = next(n for n, p in enumerate(model.pairs) if p.confidence == 0.1)
    model.pairs[odd] = replace(model.pairs[odd], accepted=True)
    assert contradicting_tiles(model) == set()


def test_good_tiles_stay_where_pairs_often_fail(rng: np.random.Generator) -> None:
    """Of 12 x 12 tiles in 20 slices. Seen to fail where failures of other pairs do not count."""
    for share in (0.9, 0.7, 0.5):
        for _ in range(20):
            model = positions((-1, -1), side=12)
            model.pairs[:] = [
                replace(p, accepted=good, confidence=0.8 if good else 0.1)
                for p, good in zip(model.pairs, rng.random(len(model.pairs)) < share, strict=True)
            ]
            assert contradicting_tiles(model) == set()


def test_tiles_that_may_be_right_stay() -> None:
    """In agarose; at a corner, with two neighbours; where nothing matches anything."""
    assert contradicting_tiles(positions((1, 2), brightness=60.0)) == set()
    assert contradicting_tiles(positions((0, 0))) == set()
    nothing = positions((1, 2))
    nothing.pairs[:] = [replace(p, accepted=False, confidence=0.1) for p in nothing.pairs]
    assert contradicting_tiles(nothing) == set()


@pytest.mark.slow
def test_a_transposed_tile_is_left_out_and_no_other(tiny, tmp_path):
    """Seen to fail without `odd_tiles`: the tile was stitched as it is."""

    def transpose(frames):
        side = min(frames.shape[:2])
        frames[:side, :side] = frames[:side, :side].transpose(1, 0, 2).copy()

    def flags():
        out = tmp_path / "slice.ome.zarr"
        params = SliceParams.from_values({})
        models = AcquisitionModels()
        reconstruct_slice(one.open(), out, models, params, overwrite=True)
        image = open_image(out)
        return image.attributes["flags"], np.asarray(image.valid)

    one = Slice(tiny / "raw", tmp_path / "raw")
    clean, _ = flags()
    assert clean == {}
    one.change(1, 1, transpose)
    told, valid = flags()
    assert told == {"1,1": ["contradicts"]}
    # Its middle is shown by nobody.
    middle = valid[:, valid.shape[1] // 2, valid.shape[2] // 2]
    assert not middle.any()


@pytest.mark.slow
def test_a_tile_that_lost_b_scans_is_named(tiny, tmp_path):
    """What followed came early, and the last ones twice."""

    def lose(frames):
        frames[40:-12] = frames[52:].copy()

    def said():
        models = tmp_path / "models"
        out, params = tmp_path / "slice.ome.zarr", SliceParams.from_values({})
        reconstruct_slice(
            one.open(), out, AcquisitionModels(), params, overwrite=True, output_models=models
        )
        found = measure("register_tiles", load_model(models, "register_tiles", TileRegistration))
        assert found is not None
        return found.metrics["torn_pairs"].value, "".join(found.warnings)

    one = Slice(tiny / "raw", tmp_path / "raw")
    assert said() == (0, "")
    one.change(1, 1, lose)
    count, text = said()
    assert count > 0 and "(1, 1)" in text


@pytest.mark.parametrize("many", [False, True])
def test_two_neighbours_that_see_one_part_of_a_tile_elsewhere_tell_that_it_is_torn(many) -> None:
    """Texture that repeats itself does so in all pairs. Seen to fail where any two are enough."""
    model = positions((9, 9))
    model.pairs[:] = [replace(p, residual_um=(0.0, 0.0)) for p in model.pairs]
    ends = [(n, p.b == (1, 1)) for n, p in enumerate(model.pairs) if (1, 1) in (p.a, p.b)]
    for n, is_second in ends if not many else [(n, True) for n in range(len(model.pairs))]:
        off_um = 60.0 if is_second else -60.0
        model.pairs[n] = replace(model.pairs[n], second_um=(off_um, 2.0), second_confidence=0.7)
    found = measure("register_tiles", model)
    assert found is not None
    assert found.metrics["torn_pairs"].value == (0 if many else len(ends) > 1 and len(ends))
