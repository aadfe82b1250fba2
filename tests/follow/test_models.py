"""When models are learned again, and from which slices."""

import json

import numpy as np
import pytest

from linumpy.follow.judge import Judge
from linumpy.follow.models import LEARNED_FROM, learn, slices_to_learn_from
from linumpy.mosaic.grid_options import GridOptions
from linumpy.slices.learn_models import AcquisitionModels, learn_models
from linumpy.slices.raw_source import raw_inputs
from linumpy.stage_params.slices import SliceParams


def lines(verdicts, seconds=100.0):
    return [
        {"slice": n, "verdict": verdict, "figures": {"duration_s": seconds}}
        for n, verdict in enumerate(verdicts)
    ]


@pytest.fixture
def models(tmp_path):
    (tmp_path / LEARNED_FROM).write_text(json.dumps({"slices": [0], "seconds": 4.0}))
    return tmp_path


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["pass"], []),
        (["pass", "pass"], [0, 1]),
        (["pass", "stop"], []),
        (["stop", "pass", "look", "pass", "pass"], [1, 3]),
        (["pass"] * 9, list(range(8))),
    ],
)
def test_models_are_learned_again_from_slices_without_findings(models, verdicts, expected):
    assert slices_to_learn_from(models, lines(verdicts)) == expected


def test_no_verdict_waits_for_learning(models):
    # Two slices take 8 s to learn from.
    assert slices_to_learn_from(models, lines(["pass"] * 2, seconds=16.0)) == [0, 1]
    assert slices_to_learn_from(models, lines(["pass"] * 2, seconds=15.9)) == []


def test_the_same_number_of_slices_teaches_once(models):
    (models / LEARNED_FROM).write_text(json.dumps({"slices": [0, 1], "seconds": 8.0}))
    assert slices_to_learn_from(models, lines(["pass"] * 3)) == []
    assert slices_to_learn_from(models, lines(["pass"] * 4)) == [0, 1, 2, 3]


@pytest.mark.slow
def test_models_are_replaced_by_those_of_more_slices_and_stay_when_that_fails(
    tiny, tmp_path, caplog
):
    options, folder = GridOptions(), tmp_path / "models"
    learn(folder, raw_inputs(tiny / "raw", [0], options=options), SliceParams.from_values({}))
    before = json.loads((folder / LEARNED_FROM).read_text())
    assert before["slices"] == [0]
    judge = Judge(tiny / "raw", tmp_path, options)
    judge.learn_again(lines(["pass"]))
    assert json.loads((folder / LEARNED_FROM).read_text()) == before
    judge.learn_again(lines(["pass"] * 2, seconds=1e6))
    after = json.loads((folder / LEARNED_FROM).read_text())
    assert after["slices"] == [0, 1]
    # They are those that a batch run learns from the same slices.
    expected = learn_models(
        raw_inputs(tiny / "raw", [0, 1], options=options), SliceParams.from_values({})
    )
    found = AcquisitionModels.load(folder, SliceParams.from_values({}))
    for name, model in expected.fields.items():
        for key, value in vars(model).items():
            assert np.array_equal(getattr(found.fields[name], key), value), (name, key)
    Judge(tmp_path / "gone", tmp_path, options).learn_again(lines(["pass"] * 4, seconds=1e6))
    assert json.loads((folder / LEARNED_FROM).read_text()) == after
    assert "learning again ended" in caplog.text
    assert [p.name for p in tmp_path.iterdir()] == ["models"]
