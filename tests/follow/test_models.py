"""When models are learned again, and from which slices."""

import json

import pytest

from linumpy.follow.models import LEARNED_FROM, slices_to_learn_from


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
