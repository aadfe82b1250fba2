"""Scripts killed at random moments lose nothing and leave nothing that looks finished.

``LINUMPY_KILLS`` says how many (100), ``LINUMPY_KILL_SEED`` the seed; the figures are printed.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def judge(found):
    """Hold what was found after one kill against what is promised."""
    states = found["then"]
    main, *sides = states[: len(states) - found["pictures"]]
    # Whole or not there, and there only if nothing else is missing but pictures of it.
    assert not any(state.startswith("torn") for state in states)
    assert main in (("old", "new") if found["overwrite"] else ("absent", "new"))
    assert main != "new" or set(sides) <= {"new"}
    if found["status"] == 143:
        assert found["left"] == []
    assert found["inputs"]
    assert found["again"] == 0
    assert set(found["after"]) == {"new"}
    assert found["hidden"] == []


def test_nothing_is_lost_by_random_kills(tmp_path):
    """Seen to fail where outputs are written in place; without `clean`; without `together`."""
    kills = os.environ.get("LINUMPY_KILLS", "100")
    command = [sys.executable, "-m", "tests.faults.kill_scripts", "--kills", kills]
    seed = os.environ.get("LINUMPY_KILL_SEED")
    if seed is not None:
        command += ["--seed", seed]
    # A kill is of a process, not of the machine: what is in memory counts as written.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        strike([*command, "--folder", folder], int(kills))


def strike(command, kills):
    """Run the campaign and judge every kill as it comes."""
    statuses, states = Counter(), Counter()
    seeds, done = "", 0
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as driver:
        for line in driver.stdout:
            found = json.loads(line)
            if "status" not in found:
                seeds = found.get("seed", seeds)
                continue
            try:
                judge(found)
            except AssertionError as error:
                driver.kill()  # the folder goes with the test
                pytest.fail(f"seed {seeds}, {line}: {error}")
            done = found["n"]
            statuses[found["status"]] += 1
            states[found["then"][0]] += 1
    assert driver.returncode == 0 and done == kills
    # Both kinds of signal came, and at moments before and after the output appeared.
    assert statuses[-9] > 0 and len(states) > 1
    print(f"seed {seeds}: {done} kills; statuses {dict(statuses)}; outputs {dict(states)}")
