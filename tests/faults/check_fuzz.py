"""Run each fuzzer for a minute, two at a time; FUZZ_SECONDS=600 gives each ten minutes.

Finds nothing in most runs; what it finds stands in the message, with the input that does it.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUZZ = Path(__file__).parent / "fuzz"
TARGETS = sorted(p.stem for p in FUZZ.glob("*.py") if p.stem[0] != "_" and p.stem != "common")
SECONDS = int(os.environ.get("FUZZ_SECONDS", "60"))
AT_ONCE = 2
LONGEST_INPUT = 8192
INPUT_S = 200
"""Of the clock, for an input that never ends; `fuzz.__main__` bounds the processor's time."""


def fuzz(target, folder):
    """Run one fuzzer; its finds go to `folder`."""
    found = folder / target
    found.mkdir()
    return subprocess.run(
        [
            *("nice", "-n", "15", sys.executable, "-m", "tests.faults.fuzz", target),
            *(str(found), str(FUZZ / "corpus" / target)),
            *(f"-max_total_time={SECONDS}", f"-max_len={LONGEST_INPUT}", f"-timeout={INPUT_S}"),
            *("-rss_limit_mb=4000", f"-artifact_prefix={folder}/{target}-"),
        ],
        capture_output=True,
        cwd=ROOT,
        timeout=SECONDS + 2 * INPUT_S,
    )


@pytest.fixture(scope="module")
def runs(made_once):
    """Status and messages of each fuzzer, by target."""
    pytest.importorskip("atheris", reason="atheris has no wheel for this Python")

    def make(folder):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            done = list(pool.map(lambda target: fuzz(target, folder), TARGETS))
        said = [(each.returncode, each.stderr.decode("utf-8", "replace")) for each in done]
        found = dict(zip(TARGETS, said, strict=True))
        (folder / "runs.json").write_text(json.dumps(found), encoding="utf-8")

    return json.loads((made_once("fuzz", make) / "runs.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found(runs, target):
    """Seen to fail, in 20 s, without the limits to the length of numbers in `info._cast`."""
    status, said = runs[target]
    assert status == 0, said[-4000:]
    executions = re.search(r"Done (\d+) runs", said)
    # The time begins once these are tried: what comes after them depends on what else runs.
    known = list((FUZZ / "corpus" / target).iterdir())
    assert executions is not None and int(executions[1]) >= len(known) > 0
    print(f"{target}: {executions[0]}")
