"""Companion process of a launch: runs beside Nextflow from its beginning to its end."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, TextIO

from linumpy.core.errors import LinumpyError
from linumpy.core.failures import real_paths
from linumpy.launch.claim import Claim
from linumpy.launch.findings import findings, made
from linumpy.launch.protocol import Answer, answer, tell
from linumpy.launch.publish import Publisher
from linumpy.launch.record import Record
from linumpy.launch.resume import mend_work

_POLL_S = 0.2


class Keeper:
    """Hold an output folder for a launch while it lives, and write there.

    The first request is for the folder (`Claim`). The next has ``action`` ``begin``: write the
    record of the launch (`Record`), publish in ``mode`` what is linked in a folder ``links``
    (`Publisher`), and ``mend`` the work folder of a resumed one. The last is ``finish``: publish
    what is left, unless told to ``give_up``, and end the ``record``. Its answer has ``problems`` of
    publishing, and what the ``report`` found: as ``said``, or as ``found`` where it is a problem.
    The launch's end closes `requests`.
    """

    def __init__(self, requests: TextIO, answers: TextIO) -> None:
        self._requests, self._answers = requests, answers
        self._parent = os.getppid()
        self._is_stopped = False
        # Sent to all processes of a terminal or a job. The launch itself may take a while to end.
        # What is started here later does not ignore them.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop)

    def _stop(self, *_: Any) -> None:
        self._is_stopped = True

    def run(self) -> None:
        """Answer until there are no more requests."""
        claimed = answer(self._begin_claim, json.loads(self._requests.readline()))
        tell(self._answers, claimed)
        if "error" in claimed:
            return
        actions = {"begin": self._begin, "finish": self._finish}
        try:
            for line in self._requests:
                asked = json.loads(line)
                tell(self._answers, answer(actions[asked["action"]], asked))
        finally:
            self._claim.release()

    def _begin_claim(self, asked: dict[str, Any]) -> Answer:
        self._claim = Claim(asked)
        return {"warnings": self._claim.warnings}

    def _begin(self, asked: dict[str, Any]) -> Answer:
        self._subject, self._started = asked["record"].get("subject", ""), time.monotonic()
        self._record = Record(self._claim.output, asked)
        self._publisher = Publisher(self._claim.output, Path(asked["links"]), asked["mode"])
        if asked["mend"]:
            session = asked["record"]["session"]
            mend_work(Path(asked["work_dir"]), session, self._warn, self._pause)
        return {}

    def _warn(self, line: str) -> None:
        tell(self._answers, {"warnings": [line], "more": True})

    def _pause(self) -> None:
        """Wait a moment, as long as the parent lives."""
        time.sleep(_POLL_S)
        if self._is_stopped or os.getppid() != self._parent:
            raise LinumpyError("stopped while waiting for a task of a launch that was killed")

    def _finish(self, asked: dict[str, Any]) -> Answer:
        problems = self._publisher.finish(give_up=asked["give_up"])
        ended = asked["record"]
        if ended.get("error") and asked.get("failure"):
            ended["error"] = real_paths(ended["error"], asked["failure"])
        warnings = self._record.end(ended, problems)
        is_whole = asked["record"]["status"] == "completed" and not problems
        text, is_bad = "", False
        if is_whole:
            report = Path(asked["report"])
            done = made(report.parent, self._subject, time.monotonic() - self._started)
            text, is_bad = findings(report, done)
        told = {"found" if is_bad else "said": text}
        return {"problems": problems, "warnings": warnings, **told}
