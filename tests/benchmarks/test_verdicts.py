"""Records of the benchmark of verdicts: faults are drawn within their ranges, counted, resumed."""

import json
from collections import Counter

import pytest

from linumpy.phantom.params import preset


def line(slice_id, *kinds, tiles=(), cut_um=None):
    reasons = [{"kind": k, "text": "", "tiles": list(tiles)} for k in kinds]
    return {
        "slice": slice_id, "verdict": "stop" if kinds else "pass", "cpu_s": 1.0,
        "reasons": reasons, "figures": {"cut_um": 410.0}, "cut_um": cut_um,
    }  # fmt: skip


@pytest.fixture
def verdicts(module, monkeypatch):
    """The benchmark, with an acquisition that is done at once: one fault found, two not."""
    found = module("verdicts")
    found.done = []

    def one(task):
        found.done.append(task["seed"])
        faults = [
            {"slice": n, "kind": kind, "tile": tile, "strength": 1.0, "artefact": None}
            for n, kind, tile in (
                (1, "double_cut", None), (2, "defocus", [1, 0]), (3, "wedge", None)
            )
        ]  # fmt: skip
        slices = [
            line(0), line(1, "double_cut", cut_um=400.0), line(2, "defocus", tiles=["x00_y00"]),
            line(3), line(4, "border"),
        ]  # fmt: skip
        return {"seed": task["seed"], "faults": faults, "slices": slices, "wall_s": 1.0}

    monkeypatch.setattr(found, "one_acquisition", one)
    return found


def test_stopped_run_goes_on_and_counts_faults_and_false_stops(verdicts, tmp_path, capsys):
    record = tmp_path / "record.jsonl"
    verdicts.main(["run", str(record), "--slices", "24"])
    lines = record.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    record.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    seeds = verdicts.done[:]
    verdicts.done.clear()
    capsys.readouterr()
    verdicts.main(["run", str(record)])
    assert verdicts.done == seeds[2:]
    printed = capsys.readouterr().out
    # The tile that was named is another one.
    for row in ("double_cut` | 3 | 3", "defocus` | 3 | 0", "wedge` | 3 | 0", "all | 9 | 3"):
        assert row in printed
    assert "clean slices: 6, of these look 0, stop 3" in printed
    assert "median 10.0 um off, largest 10.0" in printed


def test_half_of_the_slices_have_faults_of_all_kinds_in_turn(verdicts, tmp_path):
    record = tmp_path / "record.jsonl"
    verdicts.main(["run", str(record), "--slices", "240"])
    header = json.loads(record.read_text().splitlines()[0])
    counts = Counter(kind for kinds in header["kinds"] for kind in kinds)
    assert set(counts.values()) == {8} and set(counts) == set(verdicts.KINDS)


def test_strengths_lie_within_their_ranges(verdicts):
    params = preset("small", n_slices=8)
    for seed in range(40):
        kinds = [verdicts.KINDS[(seed + n) % len(verdicts.KINDS)] for n in range(4)]
        faults = verdicts.draw_faults(seed, kinds, params)
        assert [f.kind for f in faults] == kinds
        assert len({f.slice_id for f in faults} - {0}) == 4
        for fault in faults:
            if fault.kind in verdicts.RANGES:
                low, high = verdicts.RANGES[fault.kind]
                assert low <= abs(fault.strength) <= high
            assert (fault.artefact is not None) == (fault.kind in ("debris", "bubble"))
