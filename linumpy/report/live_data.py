"""What the operator's page shows, read from the results of a follower and from nothing else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.log import duration
from linumpy.follow.state import NOW_NAME, VERDICTS_NAME, whole_lines
from linumpy.follow.tile_map import image_name, map_name
from linumpy.follow.verdict import LEVELS, PASS, WORDS
from linumpy.follow.watch import last_slice_id
from linumpy.quality.run import LIVE_NAME
from linumpy.report.live_figures import history_plots, tile_boxes, tile_maps
from linumpy.report.run_section import make_environment

if TYPE_CHECKING:
    from linumpy.io.plane_server import PlaneSource

TEMPLATE = "live.html.j2"
_STEPS = 10
_SHOWN = 12


class LiveRun:
    """The page of a follower, and the files beside it.

    Parameters
    ----------
    raw, results
        As `linumpy.follow.follow.follow`.
    """

    def __init__(self, raw: Path, results: Path) -> None:
        self._raw, self._results = raw, results
        self._template = make_environment().get_template(TEMPLATE)
        # Matplotlib's settings are of the process.
        self._lock = threading.Lock()
        self._stamp: object = None
        self._context: dict[str, Any] = {}
        self._brain: tuple[int, PlaneSource] | None = None

    def page(self, *, is_ended: bool = False) -> str:
        """Return the page as it is now."""
        with self._lock:
            verdicts = self._results / VERDICTS_NAME
            changed = _changed(verdicts)
            brain = self._brain_version()
            stamp = (changed, _changed(self._raw / "state.json"), brain)
            if stamp != self._stamp:
                self._context = self._read(read_lines(verdicts))
                self._stamp = stamp
            ago = None if changed is None else max(0.0, time.time() - changed[0] / 1e9)
            now = None if is_ended else read_now(self._results / NOW_NAME)
            return self._template.render(
                **self._context,
                now=now,
                time_left=_time_left(self._context, now),
                brain=brain,
                raw=str(self._raw.absolute()),
                ago=None if ago is None else _ago(ago),
                is_ended=is_ended,
            )

    def image(self, slice_id: int) -> bytes | None:
        """Return a slice's PNG; None without one."""
        try:
            return (self._results / "slices" / image_name(slice_id)).read_bytes()
        except OSError:
            return None

    def brain(self) -> PlaneSource | None:
        """Return the planes of the growing brain; None while there is none."""
        from linumpy.core.errors import LinumpyError
        from linumpy.io.anatomy import stated_orientation
        from linumpy.io.omezarr import open_image
        from linumpy.io.plane_server import PlaneSource

        with self._lock:
            version = self._brain_version()
            if version is None:
                return None
            if self._brain is None or self._brain[0] != version:
                try:
                    image = open_image(self._results / LIVE_NAME)
                    source = PlaneSource("Brain so far", [image], stated_orientation(image), [""])
                except (LinumpyError, OSError, ValueError, KeyError):
                    return None
                self._brain = version, source
            return self._brain[1]

    def _brain_version(self) -> int | None:
        changed = _changed(self._results / LIVE_NAME / "zarr.json")
        return None if changed is None else changed[0]

    def _read(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        last = lines[-1] if lines else None
        told = None if last is None else self._tiles(last["slice"])
        levels = _levels(last) if last else {}
        last_id = last_slice_id(self._raw)
        slice_s = time_of_slice(lines)
        left = None if last is None or last_id is None else max(0, last_id - last["slice"])
        return {
            "last": last,
            "words": {level: text.capitalize() for level, text in WORDS.items()},
            "last_id": last_id,
            "n_left": left,
            "slice_s": slice_s,
            "scan_s": time_of_scan(lines),
            "slice_time": None if slice_s is None else duration(slice_s),
            "counts": {level: sum(x["verdict"] == level for x in lines) for level in LEVELS},
            "told": told,
            "image_version": _changed(self._results / "slices" / image_name(last["slice"]))
            if last
            else None,
            "boxes": tile_boxes(told, levels) if told else [],
            "maps": tile_maps(told["tiles"]) if told else [],
            "plots": history_plots(lines),
            "recent": list(reversed(lines[-1 - _SHOWN : -1])),
            "older": list(reversed(lines[: -1 - _SHOWN])),
        }

    def _tiles(self, slice_id: int) -> dict[str, Any] | None:
        try:
            text = (self._results / "slices" / map_name(slice_id)).read_text(encoding="utf-8")
            told: dict[str, Any] = json.loads(text)
        except (OSError, ValueError):
            return None
        return told


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of ``verdicts.jsonl``; another process appends to it."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    lines = []
    for line in whole_lines(data):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and {"slice", "verdict", "reasons"} <= value.keys():
            lines.append(value)
    return lines


def time_of_slice(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the usual time from slice to slice, s, by the ends of the last ones; None of one."""
    ends = {line["slice"]: (line.get("figures") or {}).get("end_s") for line in lines}
    known = sorted((n, end) for n, end in ends.items() if end is not None)[-1 - _STEPS :]
    if len(known) < 2:
        return None
    places, times = np.transpose(known)
    return float(max(0.0, np.median(np.diff(times) / np.diff(places))))


def time_of_scan(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the usual time from a slice's first file to its last, s; None without any."""
    times = [(line.get("figures") or {}).get("duration_s") for line in lines[-_STEPS:]]
    known = [seconds for seconds in times if seconds is not None]
    return float(np.median(known)) if known else None


def read_now(path: Path) -> dict[str, Any] | None:
    """Return the slice under way as ``now.json`` tells; None without one."""
    try:
        now = json.loads(path.read_bytes())
        return {name: now[name] for name in ("slice_id", "n_tiles", "n_expected", "is_judging")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _time_left(context: Mapping[str, Any], now: Mapping[str, Any] | None) -> str | None:
    """Return the time of the slices to come, what is scanned of the one under way left out."""
    left, slice_s, scan_s = context["n_left"], context["slice_s"], context["scan_s"]
    if left is None or slice_s is None:
        return None
    seconds = left * slice_s
    is_next = now is not None and now["slice_id"] > context["last"]["slice"]
    if left and is_next and now and now["n_tiles"] and now["n_expected"] and scan_s is not None:
        # Its first tile is there: the cut before it is over.
        rest = max(0.0, 1 - now["n_tiles"] / now["n_expected"])
        seconds = (context["last_id"] - now["slice_id"]) * slice_s + rest * scan_s
    return duration(seconds)


def _levels(line: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for reason in line["reasons"]:
        for name in reason["tiles"]:
            found[name] = max(found.get(name, PASS), reason["level"], key=LEVELS.index)
    return found


def _changed(path: Path) -> tuple[int, int] | None:
    """Return when a file changed, ns, and its size; None without one."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _ago(seconds: float) -> str:
    """Return a time in minutes: the page changes no more often."""
    return "just now" if seconds < 60 else f"{duration(60 * (seconds // 60))} ago"
