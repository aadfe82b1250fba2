import argparse

import pytest


@pytest.fixture
def several(module):
    return module("several_gpus")


def span(step, thread, start_s, stop_s):
    return {"step": step, "thread": thread, "start_s": start_s, "stop_s": stop_s}


def test_work_is_all_but_start_and_end(several):
    spans = [
        span("start", "start-lease", 0.0, 5.0),
        span("read", "linumpy-read_0", 5.0, 7.0),
        span("compute", "linumpy-lane_0", 6.0, 8.0),
        span("compute", "linumpy-lane_1", 6.5, 7.0),
        span("finish", "MainThread", 9.0, 12.0),
    ]
    measured = several.Measured(12.0, 1.0, 0, spans=spans)
    assert several.worked_s(measured) == 3.0
    assert several.worked_s(measured, "linumpy-lane_0") == 2.0
    assert several.worked_s(measured, "linumpy-lane_1") == 0.5


def test_phases_of_a_process_follow_each_other(several):
    spans = [
        span("start", "start-lease", 0.0, 0.5),
        span("start", "start-cuda", 0.5, 1.5),
        span("read", "linumpy-read_0", 2.0, 4.0),
        span("write", "MainThread", 3.0, 7.0),
        span("finish", "MainThread", 7.5, 8.0),
    ]
    measured = several.Measured(11.0, 1.0, 0, spans=spans, left_s=9.0)
    found = several.measure.phases(measured)
    assert found == {"start": 2, "lease": 0.5, "cuda": 1.5, "work": 5, "finish": 2, "exit": 2}
    assert sum(found[name] for name in ("start", "work", "finish", "exit")) == measured.seconds
    assert several.measure.phases(several.Measured(11.0, 1.0, 0)) == {}
    assert several.medians([{"a": 1.0, "b": 4.0}, {"a": 3.0, "b": 6.0}]) == {"a": 2.0, "b": 5.0}


def test_ratios_are_those_to_one_gpu(several):
    def many(seconds, count):
        own = {
            "slices": 12 // count,
            "tiles": 8,
            "leased_s": 1.0,
            "worked_s": 1.0,
            "utilisation_percent": 37.5,
        }
        names = [f"GPU-{n}" for n in range(count)]
        return {
            "slices": 12,
            "seconds": seconds,
            "slices_a_minute": 720 / seconds,
            "median_slice_s": 1.0,
            "phases_s": {"start": 0.25, "exit": 0.5},
            "covered_s": {"read": 0.5},
            "same_bits": True,
            "by_gpu": dict.fromkeys(names, own),
        }

    def divided(seconds, worked):
        own = {"computed_s": 0.5, "utilisation_percent": None}
        return {
            "seconds": seconds,
            "worked_s": worked,
            "phases_s": {"start": 0.25, "exit": 0.5},
            "covered_s": {"read": 0.5},
            "same_bits": True,
            "by_gpu": {"GPU-0": own},
        }

    work = {
        "n_slices_a_gpu": 12,
        "n_tiles": 4,
        "tile_shape": [64, 64, 64],
        "decoded_nbytes": 10**9,
        "made_in_s": 3.0,
        "cores_a_gpu": 8,
    }
    empty = {"tasks_a_minute": 90.0, "phases_s": {"start": 0.75, "exit": 0.25}}
    record = {
        "work": work,
        "nothing": {2: empty},
        "throughput": {1: many(24.0, 1), 2: many(12.5, 2)},
    }
    text = several.format_record(record)
    (line,) = [line for line in text.splitlines() if line.startswith("2 GPUs")]
    assert line.split() == ["2", "GPUs", "12.50", "57.6", "1.92", "1.80", "True"]
    assert text.count("37.50 %") == 3
    assert text.count("an empty task: start 0.75, exit 0.25 s; 90.0 a minute") == 1
    assert text.count("a slice: start 0.25, exit 0.50 s") == 2
    record["split"] = {1: divided(3.0, 2.0), 4: divided(2.0, 0.8)}
    (line,) = [s for s in several.format_record(record).splitlines() if s.startswith("4 GPUs")]
    assert line.split() == ["4", "GPUs", "2.00", "0.80", "1.50", "2.50", "True"]


def test_numbers_of_gpus_are_read(several):
    assert several._counts("1,2,4") == [1, 2, 4]
    for text in ("", "0", "1,-2", "two"):
        with pytest.raises(argparse.ArgumentTypeError):
            several._counts(text)
