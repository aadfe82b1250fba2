"""When models are learned again, from which slices, and how wrong ones are found."""

import json

import numpy as np
import pytest

from linumpy.follow.judge import Judge
from linumpy.follow.models import (
    LEARNED_FROM,
    known_focus,
    learn,
    learn_again,
    slices_against_models,
    slices_to_learn_from,
)
from linumpy.follow.state import KEPT_LINES
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


def told(shifts):
    """Return lines of slices with these shifts of the focus; None shows no agarose."""
    return [
        {
            "slice": n, "verdict": "pass" if abs(shift or 0) < 1 else "stop",
            "figures": {"agarose": shift is not None, "focus_shift": shift, "duration_s": 1e3},
            "reasons": [] if abs(shift or 0) < 1 else [{"kind": "defocus", "tiles": []}],
        }
        for n, shift in enumerate(shifts)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shifts", "expected"),
    [
        # Two slices against one, or foci that differ, show nothing.
        ([None, 0.0, -1.6, -1.6], []),
        ([0.0, -1.6, 1.2, -1.1, 2.0], []),
        # A focus that is lost after four good slices is told, and not taken for right at once.
        ([0.0, 0.0, 0.1, 0.0, 1.4, 1.5, 1.4, 1.5], []),
        ([None, 0.0, -1.6, -1.5, -1.6], [2, 3, 4]),
        ([0.0, 1.2, None, 1.3, 0.0, 1.1, 1.2], [1, 3, 5, 6]),
        ([None] * 6, []),
    ],
)
def test_slices_that_agree_against_the_models_show_them_wrong(shifts, expected):
    known = {"slices": [0], "since": -1, "right": []}
    assert slices_against_models(known, told(shifts)) == expected


@pytest.mark.parametrize(
    ("good", "bad", "since"), [(60, 17, -1), (60, 40, -1), (20, 40, -1), (60, 17, 2), (40, 4, 38)]
)
def test_other_slices_than_the_last_lines_do_not_count(good, bad, since):
    """Seen to fail where the last lines were all: slices out of focus corrected good models."""
    known = {"slices": [0], "since": since, "right": [0, 1, 2] if since > 0 else []}
    shifts = told([0.0] * good + [1.5] * bad)
    for end in range(1, len(shifts) + 1):
        found = slices_against_models(known, shifts[:end])
        assert found == slices_against_models(known, shifts[max(end - KEPT_LINES, 0) : end])
        assert found == []


def test_models_that_were_learned_again_are_judged_by_the_slices_since():
    known = {"slices": [47, 48, 49], "since": 49, "right": [47, 48, 49]}
    lines = told([0.0] * 50 + [1.5] * 5)
    for those in (lines, lines[-KEPT_LINES:]):
        assert slices_against_models(known, those) == [50, 51, 52, 53, 54]


def test_models_that_were_not_learned_here_stay(tmp_path, monkeypatch):
    """Seen to fail with a KeyError, once those models had been replaced."""
    learned = []
    monkeypatch.setattr("linumpy.slices.raw_source.raw_inputs", lambda *_, **__: [])
    monkeypatch.setattr("linumpy.follow.models.learn", lambda *_, **of: learned.append(of))
    (tmp_path / "models").mkdir()
    Judge(tmp_path, tmp_path, GridOptions()).learn_again(told([-1.6] * 4))
    assert learned == []


@pytest.mark.parametrize("text", ["{", "[]", '{"slices": 3}', '{"slices": [0], "since": null}'])
def test_models_of_a_damaged_record_stay_and_verdicts_go_on(models, text, caplog):
    """Seen to fail with the error of the first, which ended the follower."""
    (models / LEARNED_FROM).write_text(text)
    assert slices_to_learn_from(models, lines(["pass"] * 4)) == []
    assert known_focus(models, 0, lines(["pass"] * 4)) is None
    learn_again(models, models / "raw", lines(["pass"] * 4), GridOptions())
    assert str(models / LEARNED_FROM) in caplog.text
    assert (models / LEARNED_FROM).read_text() == text


def test_focus_that_was_not_measured_is_not_known(models):
    """Seen to fail where it was 0, whatever the slice was."""
    shifts = told([None, None, 1.5])
    # Models were learned from slice 0; slice 3 has no line.
    assert [known_focus(models, n, shifts) for n in range(4)] == [0.0, None, 1.5, None]


def test_slices_of_wrong_models_teach_no_more(models):
    lines = told([None, 0.0, -1.6, -1.6, -1.6, 0.1, 0.0])
    known = {"slices": [3, 4], "seconds": 4.0, "since": 4, "right": [3, 4]}
    (models / LEARNED_FROM).write_text(json.dumps(known))
    assert slices_against_models(known, lines) == []
    assert slices_to_learn_from(models, lines) == [3, 4, 5, 6]
    assert [known_focus(models, n, lines) for n in range(1, 6)] == [None, None, 0.0, 0.0, 0.1]


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
