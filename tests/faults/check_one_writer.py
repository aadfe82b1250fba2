"""Every output file is opened for writing once, by one thread, as strace counts."""

import re
from collections import Counter

import pytest

from tests.faults.check_disk import micro, run_job  # noqa: F401
from tests.faults.host import need_program
from tests.faults.kill_scripts import JOBS

OPENED = re.compile(r'^(\d+) +openat\([^,]*, "([^"]+)", ([A-Z_|]+)(?:, 0\d+)?\) = \d+')
ASIDE = re.compile(r"(\.[0-9a-f]{32})?\.partial$")
"""What is added to the name of a file until it is written, by Zarr's own store with a number."""

BEGUN = re.compile(r'^(\d+) +openat\([^,]*, "([^"]+)", ([A-Z_|]+)(?:, 0\d+)? <unfinished \.\.\.>')


def opens_for_writing(trace):
    """Count how often each file was opened for writing."""
    found = Counter()
    for line in trace.read_text(errors="replace").splitlines():
        match = OPENED.match(line) or BEGUN.match(line)
        if match and re.search("O_WRONLY|O_RDWR", match[3]):
            found[ASIDE.sub("", match[2])] += 1
    return found


@pytest.mark.parametrize("name", JOBS)
def test_each_file_is_opened_for_writing_once(name, micro, tmp_path):  # noqa: F811
    """Seen to fail where a slice is written in two halves, and where shards are stored twice."""
    need_program("strace", "strace")
    trace = tmp_path / "trace"
    out = tmp_path / "out"
    done = run_job(
        name, micro, out, wrapper=["strace", "-f", "-qq", "-o", trace, "-e", "trace=openat"]
    )
    assert done.returncode == 0, done.stderr
    counts = {p: n for p, n in opens_for_writing(trace).items() if p.startswith(str(out))}
    shards = {p: n for p, n in counts.items() if re.search(r"/c/\d+/\d+/\d+$", p)}
    stored = [p for p in out.rglob("*") if p.is_file() and "/c/" in str(p)]
    assert len(shards) == len(stored) > 0
    assert set(shards.values()) == {1}
    # All that is outside of arrays too, but for metadata that groups get twice.
    others = {p: n for p, n in counts.items() if p not in shards and "zarr" not in p}
    assert set(others.values()) <= {1}
