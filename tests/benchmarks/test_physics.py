"""Records of the physics benchmark: resumed, cut short, compared."""

import json

import numpy as np
import pytest


def figure(value, **details):
    return {"value": value, "unit": "px", "target": 1, "n": 1, "details": details}


def result(seed, tiles, correlation=0.5, only=None):
    figures = {
        "tile_positions_px": figure(tiles, largest=2 * tiles),
        "correlation": figure(1.0, pearson=correlation, pearson_ideal=0.8),
        "seams": figure(None, reason="no tissue"),
    }
    return {"seed": seed, "only": only, "figures": figures, "wall_s": 1.0}


@pytest.fixture
def physics(module, monkeypatch):
    """The benchmark, with physics that are done at once."""
    found = module("physics")
    done = []

    def one(task):
        done.append(task["seed"])
        return result(task["seed"], task["seed"] / 100, only=task["only"])

    monkeypatch.setattr(found, "one_physics", one)
    found.done = done
    return found


def test_stopped_run_resumes(physics, tmp_path, capsys):
    record = tmp_path / "record.jsonl"
    physics.main(["run", str(record), "--seeds", "5", "6", "7"])
    lines = record.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4 and json.loads(lines[0])["seeds"] == [5, 6, 7]
    # Killed within the third result.
    record.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    physics.done.clear()
    physics.main(["run", str(record), "--count", "1"])
    assert physics.done == [7]
    assert record.read_bytes().splitlines(keepends=True) == lines
    assert "seeds: 5 6 7" in capsys.readouterr().out
    physics.main(["run", str(record)])
    assert physics.done == [7]


def test_drawn_seeds_are_recorded_and_can_be_done_again(physics, tmp_path):
    first, second = tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    physics.main(["run", str(first), "--count", "23", "--each"])
    seeds = physics.done[:]
    assert len(set(seeds)) == 23
    physics.main(["run", str(second), "--like", str(first)])
    assert physics.done == 2 * seeds
    header, results = physics.read_record(second)
    assert header["seeds"] == seeds
    # Effects take turns.
    from linumpy.phantom.physics import EFFECTS

    assert [r["only"] for r in results] == [[list(EFFECTS)[i % len(EFFECTS)]] for i in range(23)]


def test_file_that_is_no_record_is_refused(physics, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text('{"a": 1}\n')
    with pytest.raises(SystemExit, match=r"other.jsonl: no record of benchmarks/physics.py"):
        physics.main(["run", str(other)])
    assert other.read_text() == '{"a": 1}\n'


@pytest.mark.parametrize("n", [1, 2, 10, 41, 100])
def test_distribution_is_that_of_numpy(module, rng, n):
    table = module("physics_table")
    values = rng.normal(size=n).tolist()
    tiles, correlation, signed = (
        next(m for m in table.METRICS if m.name == name)
        for name in ("tiles", "correlation", "µ of grey matter, signed")
    )
    low = table.distribution(tiles, values, 0.3)
    assert low.median == pytest.approx(np.median(values)) and low.worst == max(values)
    assert low.ninety == np.percentile(values, 90, method="inverted_cdf")
    assert low.share == pytest.approx(np.mean(np.array(values) <= 0.3))
    high = table.distribution(correlation, values, 0.3)
    assert high.worst == min(values)
    assert high.ninety == -np.percentile(-np.array(values), 90, method="inverted_cdf")
    assert high.share == pytest.approx(np.mean(np.array(values) >= 0.3))
    both = table.distribution(signed, values, None)
    assert abs(both.worst) == max(map(abs, values)) and both.share is None


def test_table_counts_failures_and_leaves_out_what_was_not_measured(module):
    table = module("physics_table")
    header = {"seeds": [1, 2, 3], "version": "v"}
    failed = {"seed": 3, "only": None, "error": "InputError: nothing"}
    text = table.show(header, [result(1, 0.1), result(2, 0.5), failed], markdown=True)
    assert "| tiles (px) | ≤ 0.3 | 2 | 0.3 | 0.5 | 0.5 | 50 % |" in text
    assert "| correlation over ideal | ≥ 0.9 | 2 | 0.625 | 0.625 | 0.625 | 0 % |" in text
    assert "seams" not in text
    assert "3 of 3 physics, 1 failed, version v." in text and "seed 3 : InputError" in text


def test_single_effects_have_targets_of_their_own(module):
    table = module("physics_table")
    results = [result(1, 0.1, only=["tear"]), result(2, 0.05, only=["stripes"])]
    text = table.show({"seeds": [1, 2]}, results, markdown=True)
    assert "| tiles (px) | ≤ 0.06 | 2 | 0.075 | 0.1 | 0.1 | 50 % |" in text
    parts = table.show({"seeds": [1, 2]}, results, markdown=True, by="effect")
    assert "### stripes\n\n" in parts and "| tiles (px) | ≤ 0.06 | 1 | 0.1 |" in parts


def test_comparison_takes_what_both_records_measured(module):
    table = module("physics_table")
    before = [result(1, 0.4), result(2, 0.2, 0.6), result(9, 7.0)]
    after = [result(1, 0.1), result(2, 0.2, 0.3), {"seed": 9, "only": None, "error": "E: x"}]
    text = table.compare(before, after, markdown=True)
    tiles = next(line for line in text.splitlines() if line.startswith("| tiles (px)"))
    assert tiles == (
        "| tiles (px) | ≤ 0.3 | 2 | 0.3 → 0.15 | 0.4 → 0.2 | 0.4 → 0.2 | 50 → 100 % | 1 | 0 |"
    )
    line = next(line for line in text.splitlines() if line.startswith("| correlation |"))
    assert line.endswith("| 0 | 1 |")
    assert text.endswith("failed: 0 → 1")


def test_wrong_step_without_a_flag_is_counted(module):
    table = module("physics_table")
    off = result(1, 0.5)
    off["figures"]["flat_field_percent"] = figure(9.0)
    (metric,) = (m for m in table.METRICS if m.name == "steps off without a flag")
    assert metric.read(off) is None
    for flags, silent in (
        ([], 2),
        (["fix_illumination_3d.n_tiles"], 2),
        (["fix_illumination_3d.residual"], 1),
        (["register_tiles.position_bound"], 1),
        (["register_tiles.accepted_share", "fix_illumination_3d.residual"], 0),
    ):
        assert metric.read({**off, "flags": flags}) == silent


def test_attenuation_is_held_against_its_stated_error(module):
    table = module("physics_table")
    name = "µ of grey matter, over 10 % or its stated error"
    (metric,) = (m for m in table.METRICS if m.name == name)
    for stated, expected in ((None, 2.4), (8.0, 2.4), (30.0, 0.8)):
        found = result(1, 0.1)
        found["figures"]["attenuation_grey_percent"] = {
            **figure(24.0), "details": {"stated_percent": stated}
        }  # fmt: skip
        assert metric.read(found) == pytest.approx(expected)


def test_whole_runs_go_on_where_they_were_and_keep_failures(physics, monkeypatch, tmp_path):
    folder, calls = tmp_path / "runs", []

    def command(_folder, script, *arguments):
        calls.append(script)
        if script == "linum_phantom.py":
            return
        output = physics.Path(arguments[arguments.index("--output") + 1])
        if output.parent.name == "seed-8":
            raise physics.subprocess.CalledProcessError(1, "nextflow")
        (output / "brain").mkdir(parents=True)
        found = result(7, 0.1)["figures"]
        (output / "brain" / "accuracy.json").write_text(json.dumps(found))

    monkeypatch.setattr(physics, "_command", command)
    physics.main(["whole", str(folder), "--seeds", "7", "8"])
    _, results = physics.read_record(folder / "whole.jsonl")
    assert [("figures" in r, "error" in r) for r in results] == [(True, False), (False, True)]
    assert calls == ["linum_phantom.py", "linum_nextflow.py"] * 2
    physics.main(["whole", str(folder)])
    assert len(calls) == 4


@pytest.mark.slow
def test_physics_is_simulated_reconstructed_and_rated(module, monkeypatch, tmp_path):
    physics = module("physics")
    sizes = {"n_slices": 2, "tiles_x": 3, "tiles_y": 3, "nx": 90, "ny": 90, "nz": 120}
    monkeypatch.setattr(physics, "GEOMETRY", sizes)
    record = tmp_path / "record.jsonl"
    # No effect but the light: what the estimators are known to hold.
    physics.main(
        ["run", str(record), "--seeds", "5", "--only", "light", "--scratch", str(tmp_path)]
    )
    _, (found,) = physics.read_record(record)
    assert "error" not in found, found
    assert found["figures"]["tile_positions_px"]["value"] < 0.1
    assert found["figures"]["correlation"]["details"]["pearson_ideal"] > 0.5
    assert found["left_out"] == []
    # Nothing stays behind.
    assert [p.name for p in tmp_path.iterdir()] == ["record.jsonl"]
