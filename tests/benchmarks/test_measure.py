import os
import sys

import pytest


def _span(step, thread, start, stop):
    return {"step": step, "item": "", "thread": thread, "start_s": start, "stop_s": stop}


SPANS = [
    _span("start", "main", 0.0, 0.4),
    _span("read", "a", 1.0, 4.0),
    _span("fetch", "a", 1.0, 2.0),
    _span("decode", "a", 2.5, 3.5),
    _span("compute", "b", 3.0, 6.0),
    _span("read", "a", 4.0, 5.0),
]


def test_time_line_adds_up(module):
    measure = module("measure")
    where = measure.where_time_went(measure.Measured(7.0, 0.0, 0, spans=SPANS))
    assert list(where) == ["start", "read", "fetch", "decode", "compute", "end"]
    assert where["start"]["covered_s"] == pytest.approx(1.0)
    assert where["fetch"] == {"busy_s": 1.0, "covered_s": 1.0, "alone_s": 1.0}
    # From 2 to 2.5 alone; from 3.5 to 5 while another thread computes.
    assert where["read"]["busy_s"] == pytest.approx(2.0)
    assert where["read"]["alone_s"] == pytest.approx(0.5)
    assert where["decode"]["alone_s"] == pytest.approx(0.5)
    assert where["compute"]["alone_s"] == pytest.approx(1.0)
    assert where["end"]["covered_s"] == pytest.approx(1.0)


def test_longest_step_includes_nested_steps(module):
    measure = module("measure")
    assert measure.longest_step_s(measure.Measured(7.0, 0.0, 0, spans=SPANS)) == 4.0


def test_time_line_holds_innermost_steps(module):
    measure = module("measure")
    assert measure.time_line(measure.Measured(7.0, 0.0, 0, spans=SPANS)) == [
        ["main", "start", 0.0, 0.4],
        ["a", "fetch", 1.0, 2.0],
        ["a", "read", 2.0, 2.5],
        ["a", "decode", 2.5, 3.5],
        ["a", "read", 3.5, 4.0],
        ["a", "read", 4.0, 5.0],
        ["b", "compute", 3.0, 6.0],
    ]


def test_union_of_overlapping_intervals(module):
    assert module("measure").covered_s([(0, 2), (5, 6), (1, 3), (1, 2)]) == 4.0
    assert module("measure").covered_s([]) == 0.0


@pytest.mark.slow
def test_process_is_measured_from_outside(module):
    # It lingers so that it is surely looked at once more on a busy machine.
    program = "import numpy, time; a = numpy.ones(30_000_000); print('done'); time.sleep(0.3)"
    run = module("measure").run([sys.executable, "-c", program], dict(os.environ), on_gpu=False)
    assert 240e6 < run.peak_nbytes < 500e6
    assert run.cpu_seconds > 0
    assert run.said == "done\n"
    assert run.spans == []


def test_failed_process_reports_its_error(module):
    measure = module("measure")
    with pytest.raises(measure.Failed, match="exit status 1: .*ValueError: no"):
        measure.run([sys.executable, "-c", "raise ValueError('no')"], {}, on_gpu=False)
