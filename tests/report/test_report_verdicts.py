"""Verdicts of a followed acquisition in the report."""

import json

import pytest

from linumpy.core.errors import InputError
from linumpy.follow.verdict import LOOK, STOP, Reason, Verdict
from linumpy.report.build import build_report
from linumpy.report.verdicts import read_verdicts
from tests.report.test_report_page import Page

VERDICTS = (
    Verdict(3, (Reason("double_cut", STOP, "398 um <b>below</b>"),), 4, 4.25),
    Verdict(0, (), 4, 9.0),
    Verdict(1, (Reason("dark_tile", LOOK, "dim", ("x01_y02", "x02_y02")),), 4, 5.5),
)


@pytest.fixture
def run(tmp_path):
    lines = [json.dumps(verdict.to_json()) for verdict in VERDICTS]
    # The last one is being written.
    (tmp_path / "verdicts.jsonl").write_text("\n".join(lines) + '\n{"slice": 4, "ver')
    return tmp_path


def test_report_shows_verdict_reasons_and_advice_of_each_slice(run):
    page = Page(build_report(run))
    at = page.text.index("Verdicts during the acquisition")
    table = page.text[at : page.text.index("Tiles were not registered")]
    for words in (
        "z00 pass – – 9.0",
        "z01 look before the cut dark tile: dim (x01_y02, x02_y02) look at these tiles; scan them",
        "z03 stop before the cut double cut: 398 um <b>below</b> the cut before this slice took",
    ):
        assert words in table, table
    assert table.index("z00") < table.index("z01") < table.index("z03")
    assert "#verdicts" in page.references


def test_without_verdicts_the_report_has_no_such_section(tmp_path):
    assert "Verdicts during" not in Page(build_report(tmp_path)).text


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", '{"slice": 0, "verdict": "good", "reasons": []}']
)
def test_line_that_is_no_verdict_is_named(run, line):
    path = run / "verdicts.jsonl"
    path.write_text(json.dumps(VERDICTS[1].to_json()) + "\n" + line + "\n")
    with pytest.raises(InputError, match=r"verdicts\.jsonl, line 2: not a verdict"):
        read_verdicts(run)
