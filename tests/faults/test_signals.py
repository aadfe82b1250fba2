"""SIGTERM, SIGHUP and Ctrl-C end a script with nothing left, also while its threads work."""

import signal
import subprocess
import sys
import threading
import time

import pytest

PATIENCE_S = 300

# Signals within so long are one: long beside what a busy machine may keep the sender waiting.
SAME_S = 3.0

# A script of its own: threads write tiles while the main thread waits for them.
SCRIPT = """\
import os, signal, sys, time
from pathlib import Path
from linumpy.cli import run
from linumpy.store.atomic import atomic_path
from linumpy.core.stream import stream

def main():
    with atomic_path(sys.argv[1], directory=True) as partial:
        def write(key, value):
            # As Zarr does: whatever folder is missing is made.
            (partial / "c").mkdir(parents=True, exist_ok=True)
            (partial / "c" / str(key)).write_text("tile")
        def read(key):
            time.sleep(float(sys.argv[2]))
        keys = (print("ready", flush=True) or key if key == 9 else key for key in range(10**6))
        for _ in stream(keys, read, lambda _, value: value, write):
            pass

run(main)
"""


def heed():
    """Let a child take signals, whatever those who started the tests ignore, as nohup and & do."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


children = []


@pytest.fixture(autouse=True)
def kill_children():
    """Leave no child running where an assertion fails."""
    yield
    while children:
        children.pop().kill()


def begin(*words, prepare=heed):
    """Start Python with these words, and wait until it says that it is at work."""
    child = subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,
    )
    children.append(child)
    assert child.stdout.readline() == "ready\n"
    return child


def begin_script(path, pause_s="0.001", prepare=heed):
    file = path.parent / "linum_test.py"
    file.write_text(SCRIPT)
    return begin(file, path, pause_s, prepare=prepare)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize(
    ("name", "said"),
    [("SIGTERM", "stopped by SIGTERM"), ("SIGHUP", "stopped by SIGHUP"), ("SIGINT", "interrupted")],
)
def test_a_signal_ends_a_script_and_leaves_nothing(name, said, times, tmp_path):
    """Also one that comes to the process and to its group, as `timeout` sends it.

    Seen to fail without `Stopping` in `run`; several at once, where the second ended it.
    """
    folder = tmp_path / "outputs"
    folder.mkdir()
    for _ in range(3):
        child = begin_script(tmp_path / "outputs" / "out")
        (tmp_path / "outputs" / "linum_test.py").unlink()
        for _ in range(times):
            child.send_signal(signal.Signals[name])
            time.sleep(0.001)
        _, text = child.communicate(timeout=PATIENCE_S)
        number = signal.Signals[name]
        # The last of several can find Python gone, and all that was to be done: shells see no more.
        assert child.returncode in ({128 + number} if times == 1 else {128 + number, -number})
        assert text.splitlines()[-1] == f"linum_test.py: {said}"
        assert "Traceback" not in text
        assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_files_written_after_a_signal_are_removed(tmp_path):
    """Seen to fail without `remove_rest` at exit."""
    file = tmp_path / "linum_test.py"
    file.write_text(
        "import sys, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from contextlib import suppress\n"
        "from linumpy.cli import run\n"
        "from linumpy.store.atomic import atomic_path\n"
        "def main():\n"
        "    pool = ThreadPoolExecutor(1)\n"
        "    with atomic_path(sys.argv[1], directory=True) as partial:\n"
        "        def work():\n"
        "            print('ready', flush=True)\n"
        "            end = time.monotonic() + 1\n"
        "            while time.monotonic() < end:\n"
        "                with suppress(OSError):\n"
        "                    (partial / 'c').mkdir(parents=True, exist_ok=True)\n"
        "                    (partial / 'c' / '0').write_text('tile')\n"
        "        pool.submit(work).result()\n"
        "run(main)\n"
    )
    folder = tmp_path / "outputs"
    child = begin(file, folder / "out")
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 143
    assert list(folder.iterdir()) == []


def test_threads_that_never_end_are_not_waited_for(tmp_path):
    """As when the exception comes while a lock is held. Seen to fail without `_watch`."""
    file = tmp_path / "linum_test.py"
    file.write_text(
        "import sys, threading\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from linumpy.core import start_up\n"
        "from linumpy.cli import run\n"
        "from linumpy.store.atomic import atomic_path\n"
        "start_up.PATIENCE_S = 0.5\n"
        "def main():\n"
        "    pool = ThreadPoolExecutor()\n"
        "    with atomic_path(sys.argv[1], directory=True) as partial, pool:\n"
        "        (partial / 'a').write_text('half')\n"
        "        done = pool.submit(threading.Event().wait)\n"
        "        print('ready', flush=True)\n"
        "        done.result()\n"
        "run(main)\n"
    )
    folder = tmp_path / "outputs"
    child = begin(file, folder / "out")
    assert len(list(folder.iterdir())) == 1
    child.send_signal(signal.SIGTERM)
    try:
        child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
    assert child.returncode == 143
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(tmp_path):
    """Seen to fail where `_watch` goes on waiting, and where it takes a second for the first."""
    code = (
        "import sys, threading, time\n"
        "from linumpy.core import start_up\n"
        "from linumpy.cli import run\n"
        f"start_up.SAME_S, start_up.PATIENCE_S = {SAME_S}, 600\n"
        "def main():\n"
        "    threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
        "run(main)\n"
    )
    child = begin("-c", code)
    child.send_signal(signal.SIGTERM)
    # The thread goes on; the main thread has said what it does.
    assert "stopped by SIGTERM" in child.stderr.readline()
    child.send_signal(signal.SIGTERM)
    time.sleep(SAME_S + 0.5)
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 143


def test_what_the_caller_ignores_stays_ignored(tmp_path):
    """As under nohup."""

    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    child = begin_script(tmp_path / "out", prepare=ignore)
    child.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.3)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 143


def test_handlers_come_back_and_other_threads_set_none():
    from linumpy.cli import run

    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run(lambda: None)
    thread = threading.Thread(target=run, args=(lambda: None,))
    thread.start()
    thread.join()
    after = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert after == before
