import pytest


@pytest.fixture
def groups(module):
    return module("slice_groups")


def span(step, start_s, stop_s):
    return {"step": step, "thread": "any", "start_s": start_s, "stop_s": stop_s}


def test_steps_are_covered_a_process_and_summed_over_processes(groups):
    one = [span("read", 0.0, 2.0), span("read", 1.0, 3.0), span("solve", 2.0, 2.5)]
    runs = [groups.Measured(4.0, 1.0, 0, spans=one), groups.Measured(4.0, 1.0, 0, spans=one[:1])]
    assert groups.by_step(runs) == {"read": 5.0, "solve": 0.5}


def test_digest_is_that_of_chunks_and_their_places(groups, tmp_path):
    for name, chunk in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "zarr.json").write_text(name)
        (tmp_path / name / "0").write_bytes(chunk)
    digests = [groups.digest(tmp_path / name) for name in "abc"]
    assert digests[0] == digests[1] != digests[2]


def test_ways_are_processes_and_slices_at_a_time(groups):
    args = groups.build_parser().parse_args(["--ways", "1x2,3x1"])
    assert args.ways == [(1, 2), (3, 1)]
