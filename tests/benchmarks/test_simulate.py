"""The simulator compared with results by hand, and with invariants."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linumpy.core.errors import LinumpyError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
try:
    from machine_model import BANDWIDTH, CHAIN, DEVICES, NEXTFLOW, Machine, Task
    from simulate import critical_path_s, simulate
finally:
    sys.path.pop(0)


def alike(n, **options):
    return [Task(f"t{k:03d}", "work", **options) for k in range(n)]


@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 2), (12, 4), (120, 7), (120, 64), (5, 9)])
def test_equal_tasks_on_equal_machines_take_rounds(n, k):
    on_gpus = simulate(alike(n, gpu=1.0, compute_s=3.0), Machine(cores=999, gpus=k))
    on_cores = simulate(alike(n, start_s=1.0, compute_s=2.0), Machine(cores=k))
    assert on_gpus.seconds == pytest.approx(3.0 * math.ceil(n / k))
    assert on_cores.seconds == pytest.approx(on_gpus.seconds)
    assert on_gpus.gpu_share(k) == pytest.approx(n / k / math.ceil(n / k))


@pytest.mark.parametrize("k", [1, 2, 4, 8, 40])
def test_serial_part_limits_speed_up_by_amdahls_law(k):
    before = Task("before", "learn", gpu=1.0, compute_s=6.0)
    tasks = [before, *alike(40, gpu=1.0, compute_s=1.0, needs=("before",))]
    after = Task("after", "stack", tuple(t.name for t in tasks), gpu=1.0, compute_s=4.0)
    found = simulate([*tasks, after], Machine(cores=99, gpus=k))
    assert found.seconds == pytest.approx(10.0 + 40.0 / k)
    assert critical_path_s([*tasks, after], Machine(cores=99, gpus=k)) == pytest.approx(11.0)
    # With one GPU each task waits for the other; with 40 only the chain is left.
    assert found.waited_s[CHAIN] == pytest.approx(10.0 + 40.0 / k - found.waited_s[DEVICES])
    assert found.waited_s[DEVICES] == pytest.approx((40 - k) / k)


@pytest.mark.parametrize("batch", [False, True])
def test_tasks_slow_each_other_where_they_share_a_gpu_of_one_machine(batch):
    """By hand: two that keep 0.8 of a GPU busy each run at 1 / 1.6 while both do.

    After 1.6 s the first has done its second, the other one of its two. Nothing is known of what
    jobs of a batch system share. Seen to fail with tasks that end by the clock.
    """
    tasks = [
        Task(f"t{n}", "work", gpu=0.5, compute_s=1.0 + n, busy_gpu=0.8, busy_cores=0.5)
        for n in range(2)
    ]
    queue = 10 if batch else None
    where = Machine(cores=2, gpus=1, bandwidth=10.0, queue_size=queue)
    ends = [span.end_s for span in simulate(tasks, where).spans]
    assert ends == pytest.approx([1.0, 2.0] if batch else [1.6, 2.6])
    # What a task has computed before its bytes have moved slows no other.
    first = replace(tasks[0], moved_bytes=100.0)
    ends = [span.end_s for span in simulate([first, tasks[1]], where).spans]
    assert ends == pytest.approx([10.0, 2.0] if batch else [10.0, 2.6])


def test_a_shared_disk_gives_its_bandwidth_and_no_more():
    tasks = alike(12, moved_bytes=100.0, compute_s=1.0)
    bound = simulate(tasks, Machine(cores=12, bandwidth=50.0))
    assert bound.seconds == pytest.approx(12 * 100 / 50)
    assert bound.bottleneck == BANDWIDTH
    assert bound.waited_s[BANDWIDTH] == pytest.approx(23.0)
    # Wide enough, nobody waits for it; a lone task is bound by its own share.
    assert simulate(tasks, Machine(cores=12, bandwidth=1200.0)).seconds == pytest.approx(1.0)
    alone = Machine(cores=1, bandwidth=1200.0, task_bandwidth=20.0)
    assert simulate(tasks[:1], alone).seconds == pytest.approx(5.0)


def test_bandwidth_is_shared_evenly_as_tasks_come_and_go():
    # Alone for 1 s at 10 a second; then two share: 5 each until the first has moved its 30.
    tasks = [
        Task("a", "read", moved_bytes=30.0),
        Task("b", "read", start_s=1.0, moved_bytes=30.0),
    ]
    found = {s.task.name: s for s in simulate(tasks, Machine(cores=2, bandwidth=10.0)).spans}
    assert found["a"].end_s == pytest.approx(1 + 20 / 5)
    assert found["b"].end_s == pytest.approx(5 + 10 / 10)


def test_reading_overlaps_computing_but_not_start_up():
    machine = Machine(cores=1, bandwidth=10.0)
    slow = Task("t", "p", start_s=2.0, compute_s=3.0, moved_bytes=20.0)
    assert simulate([slow], machine).seconds == pytest.approx(5.0) == machine.alone_s(slow)
    wide = replace(slow, moved_bytes=50.0)
    assert simulate([wide], machine).seconds == pytest.approx(7.0) == machine.alone_s(wide)


def test_submitting_one_after_the_other_bounds_the_rate():
    machine = Machine(cores=999, submit_s=1.0)
    found = simulate(alike(30, compute_s=2.0), machine)
    assert found.seconds == pytest.approx(30 + 2)
    assert found.bottleneck == NEXTFLOW
    # No more than two are ever under way.
    assert max(s.start_s for s in found.spans) == pytest.approx(30)


def test_an_array_is_handed_over_at_once_and_holds_tasks_of_its_process_alone():
    tasks = [*alike(5, compute_s=2.0), Task("other", "another", compute_s=2.0)]
    found = simulate(tasks, Machine(cores=999, submit_s=1.0, arrays={tasks[0].process: 3}))
    assert [s.start_s for s in found.spans] == pytest.approx([1, 1, 1, 2, 2, 3])
    assert found.spans[-1].task.name == "other"


def test_ends_are_seen_when_nextflow_looks():
    chain = [Task("a", "p", compute_s=1.2), Task("b", "p", ("a",), compute_s=1.2)]
    found = simulate(chain, Machine(cores=9, poll_s=5.0))
    assert [s.start_s for s in found.spans] == pytest.approx([0, 5])
    assert found.seconds == pytest.approx(10)
    assert found.waited_s[NEXTFLOW] == pytest.approx(10 - 2.4)


def test_one_machine_has_room_when_an_end_is_seen_a_batch_system_at_once():
    tasks = alike(4, compute_s=1.0)
    local = simulate(tasks, Machine(cores=1, poll_s=2.0))
    batch = simulate(tasks, Machine(cores=1, poll_s=2.0, queue_size=100))
    assert local.seconds == pytest.approx(8)
    assert batch.seconds == pytest.approx(4)


def test_a_queue_takes_so_many_and_keeps_them_so_long():
    machine = Machine(cores=999, queue_size=10, queue_s=3.0)
    # Ten at a time, 3 s in the queue and 1 s of work each.
    assert simulate(alike(40, compute_s=1.0), machine).seconds == pytest.approx(4 * 4)


def test_tasks_on_tables_wait_for_no_job():
    """Seen to fail with them counted among the jobs of a full queue."""
    light = {"compute_s": 1.0, "light": True}
    chain = [
        Task("job", "big", compute_s=5.0),
        Task("a", "tables", **light),
        Task("b", "tables", ("a",), **light),
        Task("c", "big", ("b",), compute_s=1.0),
    ]
    machine = Machine(cores=1, submit_s=1.0, poll_s=2.0, queue_s=2.0, queue_size=1)
    spans = {span.task.name: span for span in simulate(chain, machine).spans}
    assert spans["job"].start_s == pytest.approx(3)
    assert spans["a"].start_s == pytest.approx(0.03)
    assert spans["b"].seen_s == pytest.approx(2.2)
    # The queue has room once the end of the first job, at 8, is seen.
    assert spans["c"].start_s == pytest.approx(8 + 3)


def test_forks_memory_and_shares_of_a_gpu_bound_what_runs_together():
    forked = simulate(alike(12, compute_s=1.0, forks=3), Machine(cores=99))
    assert forked.seconds == pytest.approx(4)
    assert forked.waited_s[DEVICES] == pytest.approx(3)
    memory = Machine(cores=99, memory_bytes=10)
    assert simulate(alike(12, compute_s=1.0, memory_bytes=4), memory).seconds == pytest.approx(6)
    shares = Machine(cores=99, gpus=2)
    assert simulate(alike(24, compute_s=1.0, gpu=1 / 6), shares).seconds == pytest.approx(2)


def test_who_waits_for_a_gpu_is_served_in_the_order_of_coming():
    tasks = [
        Task("first", "small", gpu=1 / 4, compute_s=4.0),
        Task("whole", "large", gpu=1.0, compute_s=2.0),
        Task("last", "small", gpu=1 / 4, compute_s=1.0),
    ]

    def starts(tasks, **queue):
        spans = simulate(tasks, Machine(cores=9, gpus=1, **queue)).spans
        return {span.task.name: span.start_s for span in spans}

    for queue in ({}, {"queue_size": 9}):
        assert starts(tasks, **queue) == {"first": 0, "whole": 4, "last": 6}
        waited_s = simulate(tasks, Machine(cores=9, gpus=1, **queue)).waited_s
        assert (waited_s[DEVICES], sum(waited_s.values())) == (6, 7)
    forked = [replace(task, forks=1) for task in (tasks[0], tasks[2], tasks[1])]
    assert starts(forked) == {"first": 0, "whole": 4, "last": 6}


def test_small_task_overtakes_one_without_room():
    tasks = [
        Task("a", "p", cores=1, compute_s=4.0),
        Task("wide", "p", cores=2, compute_s=1.0),
        Task("small", "p", cores=1, compute_s=1.0),
    ]
    found = {s.task.name: s for s in simulate(tasks, Machine(cores=2)).spans}
    assert found["small"].start_s == 0
    assert found["wide"].start_s == pytest.approx(4)


graphs = st.lists(
    st.tuples(
        st.floats(0, 5), st.floats(0, 5), st.floats(0, 50), st.sampled_from([0.0, 0.25, 1.0]),
        st.sets(st.integers(1, 6), max_size=3),
    ),
    min_size=1, max_size=14,
)  # fmt: skip


def graph_of(rows):
    """Tasks that need some of the six before them."""
    return [
        Task(
            f"t{n}", f"p{n % 3}", tuple(f"t{n - b}" for b in sorted(back) if b <= n),
            start_s=start, compute_s=compute, moved_bytes=moved, gpu=gpu,
        )
        for n, (start, compute, moved, gpu, back) in enumerate(rows)
    ]  # fmt: skip


machines = st.builds(
    Machine,
    cores=st.integers(1, 4),
    gpus=st.integers(1, 3),
    bandwidth=st.sampled_from([5.0, 40.0, math.inf]),
    submit_s=st.sampled_from([0.0, 0.3]),
    poll_s=st.sampled_from([0.0, 0.7]),
    queue_size=st.sampled_from([None, 2, 100]),
)


@settings(max_examples=80, deadline=None)
@given(rows=graphs, machine=machines)
def test_what_holds_for_every_run(rows, machine):
    tasks = graph_of(rows)
    found = simulate(tasks, machine)
    assert found == simulate(tasks, machine)
    spans = {span.task.name: span for span in found.spans}
    assert len(spans) == len(tasks)
    # Every second belongs to one reason.
    assert math.fsum(found.waited_s.values()) == pytest.approx(found.seconds)
    assert found.seconds == pytest.approx(max(span.seen_s for span in found.spans))
    total = 0.0
    for task in tasks:
        span = spans[task.name]
        assert span.start_s >= max((spans[n].seen_s for n in task.needs), default=0.0) - 1e-6
        assert span.busy_s >= machine.alone_s(task) - 1e-6
        assert span.end_s <= span.seen_s + 1e-6
        total += span.busy_s
    assert total <= machine.cores * found.seconds + 1e-6
    assert 0 <= found.gpu_share(machine.gpus) <= 1 + 1e-9
    assert found.seconds >= critical_path_s(tasks, machine) - 1e-6
    assert found.seconds >= sum(t.moved_bytes for t in tasks) / machine.bandwidth - 1e-6
    assert found.seconds >= len(tasks) * machine.submit_s - 1e-6
    # At no time more is held than there is.
    for at in {span.start_s for span in found.spans}:
        now = [s for s in found.spans if s.start_s <= at + 1e-9 and s.end_s > at + 1e-6]
        assert sum(s.task.cores for s in now) <= machine.cores
        assert sum(s.task.gpu for s in now) <= machine.gpus + 1e-9


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([Task("a", "p", ("b",))], "task a: needs b, which is no task"),
        ([Task("a", "p", ("b",)), Task("b", "p", ("a",))], "needs itself"),
        ([Task("a", "p"), Task("a", "p")], "two tasks have one name"),
        ([Task("a", "p", cores=5)], "task a: asks for 5 cores"),
        ([Task("a", "p", gpu=1.0)], "task a: asks for 1 cores, 0 bytes and 1 of a GPU"),
    ],
)
def test_what_can_never_run_is_refused(tasks, message):
    with pytest.raises(LinumpyError, match=message):
        simulate(tasks, Machine(cores=4))
