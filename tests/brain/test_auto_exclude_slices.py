"""Exclusion of slices that match no other: from the registration, with the reason."""

import json

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from linumpy.brain.auto_exclude_slices import (
    NO_MATCH,
    UNMATCHED_RUN,
    auto_exclude_slices,
    stamp_exclusions,
)
from linumpy.brain.register_pairwise import NO_SHARED_PLANES
from linumpy.brain.register_slices import SliceVolume, register_slices
from linumpy.core.errors import InputError
from linumpy.io.tables import SliceConfig, read_slice_config, selected_ids, write_slice_config
from linumpy.stage_params.brain import RegisterParams
from linumpy.stage_params.gaps import AutoExcludeParams

from ..geometry.speckle import image, structured_field

PARAMS = AutoExcludeParams()
N = 8
STEP = 8


def pairs_of(n=N, bad=(), two_apart=True, correlation=0.25, changed=None):
    """What registration says of slices of which some match nothing."""
    table = []
    for a in range(n):
        for b in (a + 1, a + 2)[: 2 if two_apart else 1]:
            if b >= n:
                continue
            good = a not in bad and b not in bad
            value = (changed or {}).get((a, b), correlation if good else 0.03)
            table.append({"fixed_id": a, "moving_id": b, "correlation": value, "accepted": good})
    return table


def excluded(pairs, n=N, params=PARAMS):
    model = auto_exclude_slices(range(n), pairs, params)
    return {record["slice_id"]: record["reason"] for record in model.excluded}


@pytest.fixture(scope="module")
def tissue():
    return structured_field(21, 100, (96, 100))


def damaged(rng, data, kind):
    if kind == "blurred":
        return gaussian_filter(data, (2, 5, 5))
    if kind == "folded":
        return data[:, ::-1]
    return rng.rayleigh(1, size=data.shape)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ({}, {}),
        ({3: "blurred"}, {3: NO_MATCH}),
        ({3: "dark"}, {3: NO_MATCH}),
        ({5: "folded"}, {5: NO_MATCH}),
        ({3: "dark", 4: "dark"}, {3: UNMATCHED_RUN, 4: UNMATCHED_RUN}),
        ({2: "dark", 5: "blurred"}, {2: NO_MATCH, 5: NO_MATCH}),
    ],
    ids=["none", "blurred", "dark", "folded", "two_beside", "two_apart"],
)
@pytest.mark.slow
def test_slices_that_registration_cannot_match_are_left_out(rng, tissue, damage, expected):
    slices = []
    for i in range(N):
        place = np.array([20, 16]) + rng.normal(0, 1, 2)
        data = image(rng, tissue[i * STEP : i * STEP + 30], place, (56, 62), 0.5)
        if i in damage:
            data = damaged(rng, data, damage[i])
        data = data.astype(np.float32)
        slices.append(
            SliceVolume(i, data.shape, (200.0, 160.0), 0.0, lambda p, w, d=data: (d[(p, *w)], None))
        )
    params = RegisterParams(first_plane=2, max_translation_px=14)
    model = register_slices(slices, (10.0, 10.0, 10.0), 80.0, params)
    assert excluded(model.pairs) == expected


def test_pairs_without_comparison_are_ignored():
    """Imaging that does not reach the next slice is no fault of the slices."""
    pairs = [
        {**p, "accepted": False, "correlation": 0.0, "reason": NO_SHARED_PLANES}
        for p in pairs_of(two_apart=False)
    ]
    assert excluded(pairs) == {} and excluded([]) == {}
    missing = [p for p in pairs_of(bad=(4,)) if p["fixed_id"] + 2 != p["moving_id"]]
    assert excluded(missing) == {}


def test_what_a_person_aligned_is_kept():
    """However little it correlates."""
    pairs = [
        {**p, "source": "manual", "accepted": True} if p["moving_id"] - p["fixed_id"] == 1 else p
        for p in pairs_of(bad=(4,))
    ]
    assert excluded(pairs) == {}


def test_a_break_between_two_good_halves_is_no_bad_slice():
    across = {(3, 4), (2, 4), (3, 5)}
    pairs = [{**p, "accepted": (p["fixed_id"], p["moving_id"]) not in across} for p in pairs_of()]
    assert excluded(pairs) == {}


def test_run_of_unmatched_slices_is_left_out_without_pairs_across_it():
    """Shallow imaging: neighbours alone were compared."""
    assert excluded(pairs_of(bad=(3, 4), two_apart=False)) == {3: UNMATCHED_RUN, 4: UNMATCHED_RUN}
    longer = AutoExcludeParams(consecutive=4)
    assert excluded(pairs_of(bad=(3, 4), two_apart=False), params=longer) == {}
    # One slice alone: without a pair across it nothing says that it is the bad one.
    assert excluded(pairs_of(bad=(3,), two_apart=False)) == {}


def test_a_brain_keeps_its_thin_ends():
    """Towards the ends less and less correlates, and is still believed."""
    fading = {(5, 6): 0.13, (6, 7): 0.1, (7, 8): 0.08, (8, 9): 0.06}
    fading |= {(4, 6): 0.12, (5, 7): 0.1, (6, 8): 0.08, (7, 9): 0.06}
    assert excluded(pairs_of(n=10, changed=fading), n=10) == {}
    # The first and the last slice go only with a run.
    assert excluded(pairs_of(bad=(0,))) == {} and excluded(pairs_of(bad=(7,))) == {}
    assert set(excluded(pairs_of(bad=(0, 1, 2)))) == {0, 1, 2}


def test_an_accepted_pair_far_below_those_around_it_does_not_match():
    weak = {(2, 3): 0.06, (3, 4): 0.07, (1, 3): 0.05, (3, 5): 0.05}
    model = auto_exclude_slices(range(N), pairs_of(changed=weak), PARAMS)
    (record,) = model.excluded
    assert record["slice_id"] == 3 and record["reason"] == NO_MATCH
    assert record["best_correlation"] == 0.07 and record["usual_correlation"] == 0.25
    assert model.unmatched_pairs == [(2, 3), (3, 4)]
    assert excluded(pairs_of(changed=weak), params=AutoExcludeParams(relative_correlation=0)) == {}


def test_ids_need_not_be_consecutive():
    """Slice 3 was never imaged: 2 and 4 are neighbours, two ids apart."""
    pairs = [p for p in pairs_of(bad=(4,)) if 3 not in (p["fixed_id"], p["moving_id"])]
    pairs.append({"fixed_id": 2, "moving_id": 5, "correlation": 0.2, "accepted": True})
    model = auto_exclude_slices([0, 1, 2, 4, 5, 6, 7], pairs, PARAMS)
    assert [record["slice_id"] for record in model.excluded] == [4]


def test_never_all():
    """Seen to fail without the error of `auto_exclude_slices.auto_exclude_slices`."""
    with pytest.raises(InputError, match="none of the 8 slices matches another"):
        excluded(pairs_of(bad=range(N)))
    assert excluded([], n=1) == {} and excluded(pairs_of(n=2, bad=(0, 1)), n=2) == {}


def test_every_exclusion_carries_its_reason():
    rows = [SliceConfig(i, use=None if i else False, notes="n") for i in range(N)]
    model = auto_exclude_slices(range(N), pairs_of(bad=(4,)), PARAMS)
    stamped = stamp_exclusions(rows, model)
    out = stamped[4]
    assert (out.use, out.auto_excluded, out.notes) == (False, True, "n")
    assert out.exclude_reason == out.auto_exclude_reason == NO_MATCH
    assert stamped[0].auto_excluded is None and stamped[0].use is False
    assert stamped[5].auto_excluded is False and stamped[5].used
    assert selected_ids(stamped, range(N)) == (1, 2, 3, 5, 6, 7)


def test_the_script_stamps_a_new_table(tmp_path, script):
    record = {"slices": [{"slice_id": i} for i in range(N)], "pairs": pairs_of(bad=(4,))}
    registration = tmp_path / "register_slices.json"
    registration.write_text(json.dumps(record))
    write_slice_config(tmp_path / "in.csv", [SliceConfig(i) for i in range(N)])
    arguments = (registration, tmp_path / "in.csv", tmp_path / "out.csv")
    done = script(
        "auto_exclude_slices", *arguments, "--output_model", tmp_path / "m/model.json",
        "--params", "-", stdin='{"auto_exclude_consecutive": 3}',
    )  # fmt: skip
    assert "slice z04 is left out" in done.stderr
    rows = read_slice_config(tmp_path / "out.csv")
    assert [row.slice_id for row in rows if not row.used] == [4]
    assert json.loads((tmp_path / "m/model.json").read_text())["excluded"][0]["slice_id"] == 4
    assert read_slice_config(tmp_path / "in.csv")[4].used
    registration.write_text(json.dumps({**record, "pairs": pairs_of(bad=range(N))}))
    failed = script("auto_exclude_slices", *arguments, "--overwrite", check=False)
    assert failed.returncode == 1 and "all would be left out" in failed.stderr
    registration.write_text(json.dumps({"slices": []}))
    failed = script("auto_exclude_slices", *arguments, "--overwrite", check=False)
    assert failed.returncode == 1 and "lacks or misstates 'pairs'" in failed.stderr
