"""Section of the report on the run itself, complete only once it has ended.

The report is made by the run's last task. So its page marks the place of this section, and
`linumpy.report.finish` replaces it once the run has ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linumpy.core.errors import InputError
from linumpy.records.privacy import from_home
from linumpy.records.timing import (
    Task,
    by_stage,
    bytes_label,
    duration_label,
    tasks_of,
    wall_time_s,
)

if TYPE_CHECKING:
    import jinja2

TEMPLATE = "record.html.j2"
SECTION, WALL = "run", "wall"

_NAMES = {
    "python": "Python",
    "numpy": "NumPy",
    "scipy": "SciPy",
    "simpleitk": "SimpleITK",
    "nibabel": "NiBabel",
    "cupy": "CuPy",
    "kvikio": "KvikIO",
    "nvcomp": "nvCOMP",
    "nextflow": "Nextflow",
    "java": "Java",
}
_HIDDEN = ("help", "overwrite", "slurm_*", "k8s_*", "aws_*", "cloud_*")
_FIRST = ("linumpy", "Nextflow", "Java", "Python")


def marked(name: str, text: str) -> str:
    """Return a part of a page with marks by which `replace_part` finds it."""
    return f"<!--linumpy:{name}-->{text}<!--/linumpy:{name}-->"


def replace_part(page: str, name: str, text: str) -> str:
    """Return a page with another text between the marks of a part.

    Raises
    ------
    InputError
        When the page does not have these marks, once each.
    """
    begin, end = f"<!--linumpy:{name}-->", f"<!--/linumpy:{name}-->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise InputError(f"the page has no place for its part {name!r}")
    before, _, rest = page.partition(begin)
    return before + marked(name, text) + rest.partition(end)[2]


def has_parts(page: str) -> bool:
    """Whether a page is a report that has a place for how its run ended."""
    return all(f"<!--linumpy:{name}-->" in page for name in (SECTION, WALL))


def fill_run_parts(page: str, record: Mapping[str, Any]) -> str:
    """Return a report filled in from the complete record of its launch.

    Parameters
    ----------
    page
        As `build.build_report` made it, or as this function did.
    record
        Of the launch (`linumpy.records.launches`).
    """
    tasks = tasks_of(record["tasks"])
    page = replace_part(page, SECTION, render_section(record, tasks))
    return replace_part(page, WALL, wall_label(record, tasks))


def wall_label(record: Mapping[str, Any], tasks: Sequence[Task]) -> str:
    """Return how long the run took, for the head of the page."""
    wall = _wall_s(record, tasks)
    if wall is not None:
        return f"<dt>Wall time</dt><dd>{duration_label(wall)}</dd>"
    if tasks:
        total = sum(task.realtime_s for task in tasks)
        return f"<dt>Time of all tasks</dt><dd>{duration_label(total)}</dd>"
    return "<dt>Wall time</dt><dd>unknown</dd>"


def render_section(record: Mapping[str, Any], tasks: Sequence[Task]) -> str:
    """Return the section as HTML.

    Parameters
    ----------
    record
        What is known of the launch: its complete record, or any of ``command_line``, ``params``,
        ``versions``.
    tasks
        Those that are known.
    """
    versions = {_NAMES.get(n, n): str(v) for n, v in (record.get("versions") or {}).items()}
    order = [n for n in _FIRST if n in versions] + [n for n in versions if n not in _FIRST]
    params = {n: v for n, v in (record.get("params") or {}).items() if _is_shown(n, v)}
    return (
        make_environment()
        .get_template(TEMPLATE)
        .render(
            status=record.get("status"),
            summary=_summary(record, tasks),
            failure=_failure(record),
            times=_times(tasks),
            machine=_machine(record),
            versions=[(name, versions[name]) for name in order],
            remarks=_remarks(record),
            command_line=from_home(record.get("command_line")),
            parameters={name: _value_text(v) for name, v in sorted(params.items())},
        )
    )


@cache
def make_environment() -> jinja2.Environment:
    """Return what fills the report's templates, which it keeps: a slice's page fills one, too."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _wall_s(record: Mapping[str, Any], tasks: Sequence[Task]) -> float | None:
    told = record.get("wall_s")
    return wall_time_s(tasks) if told is None else float(told)


def _summary(record: Mapping[str, Any], tasks: Sequence[Task]) -> str:
    """Return the run in a line."""
    if not tasks:
        return ""
    retries = sum(task.retried for task in tasks)
    cached = sum(task.cached for task in tasks)
    failed = sum(stage.failed for stage in by_stage(tasks))
    words = [_count(len(tasks) - retries, "task")]
    if cached:
        words.append(f"{cached} of them cached from an earlier launch")
    if retries:
        words.append("1 retry" if retries == 1 else f"{retries} retries")
    if failed:
        words.append(f"{failed} failed")
    words.append(f"{duration_label(sum(task.realtime_s for task in tasks))} of computing")
    wall = _wall_s(record, tasks)
    if wall is not None:
        words.append(f"{duration_label(wall)} from start to end")
    peak = max(filter(None, (task.peak_bytes for task in tasks)), default=None)
    if peak is not None:
        words.append(f"at most {bytes_label(peak)} of memory a task")
    words += [_gpu_label(gpu) for gpu in record.get("gpus") or ()]
    return ", ".join(words) + "."


def _failure(record: Mapping[str, Any]) -> str:
    if record.get("status") in (None, "completed"):
        return ""
    tasks = [
        f"{task['process']} ({task['tag']}), exit status {task['exit']}"
        for task in record.get("failed_tasks") or ()
    ]
    return "; ".join(tasks) or "No task is known to have failed."


def _times(tasks: Sequence[Task]) -> dict[str, Any] | None:
    if not tasks:
        return None
    from linumpy.report.model_figures import time_plot

    stages = by_stage(tasks)
    return {
        "plot": time_plot(stages).render(),
        "cached": any(stage.cached for stage in stages),
        "memory": any(stage.peak_bytes for stage in stages),
        "disk": any(stage.read_bytes is not None for stage in stages),
        "rows": [
            {
                "process": stage.process,
                "tasks": stage.tasks,
                "cached": stage.cached,
                "failed": stage.failed,
                "retries": stage.retries,
                "total": duration_label(stage.total_s),
                "longest": duration_label(stage.longest_s),
                "memory": bytes_label(stage.peak_bytes),
                "read": bytes_label(stage.read_bytes),
                "written": bytes_label(stage.write_bytes),
            }
            for stage in stages
        ],
        # Without a trace a task's time is all that is known of it.
        "tasks": [_row(task) for task in tasks] if any(t.submit for t in tasks) else [],
    }


def _row(task: Task) -> dict[str, Any]:
    return {
        "process": task.process,
        "tag": task.tag,
        "status": task.status.lower() + (f", exit {task.exit}" if task.exit else ""),
        "failed": task.failed,
        "attempt": task.attempt,
        "submitted": "" if task.submit is None else f"{task.submit:%d %b %H:%M:%S}",
        "duration": duration_label(task.duration_s),
        "realtime": duration_label(task.realtime_s),
        "cpu": "" if task.cpu_percent is None else f"{task.cpu_percent:.0f} %",
        "memory": bytes_label(task.peak_bytes),
        "read": bytes_label(task.read_bytes),
        "written": bytes_label(task.write_bytes),
    }


def _machine(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return where it ran, as names with values."""
    rows = []
    machines = record.get("machines") or ()
    for machine in machines:
        memory = bytes_label(machine["memory_nbytes"])
        where = f" ({_count(machine['tasks'], 'task')})" if len(machines) > 1 else ""
        rows += [
            ("Machine" + where, f"{machine['cpu']}, {machine['cores']} cores, {memory}"),
            ("System", f"{machine['system']}, kernel {machine['kernel']}"),
        ]
    gpus = record.get("gpus")
    if gpus is not None:
        rows += [("Accelerator", _gpu_label(gpu)) for gpu in gpus] or [("Accelerator", "none")]
    for gpu in gpus or ():
        cuda = f"CUDA {gpu['cuda_runtime']}, up to {gpu['cuda_driver']}"
        rows.append(("Driver", f"{gpu['driver'] or 'unknown'}, {cuda}"))
    for image in record.get("container") or ():
        engine = f" ({image['engine']})" if image.get("engine") else ""
        rows.append(("Container" + engine, Path(image["image"]).name))
        known = next(filter(None, [*image["digests"], image["id"]]), None)
        if known:
            rows.append(("Digest", known.rpartition("@")[2]))
    if record.get("profile"):
        rows.append(("Profile", str(record["profile"])))
    revision = record.get("revision") or {}
    if revision.get("commit"):
        changed = ", with changes" if revision.get("modified") else ""
        rows.append(("Revision", revision["commit"][:12] + changed))
    return rows


def _remarks(record: Mapping[str, Any]) -> list[str]:
    found = []
    if record.get("environment_of") == "launching machine":
        found.append(
            "No task left a note of what it computed with: machine and versions are those of the "
            "computer that launched the run."
        )
    for other in record.get("other_versions") or ():
        names = ", ".join(
            f"{_NAMES.get(n, n)} {v or '(none)'}" for n, v in other["versions"].items()
        )
        cached = " (cached)" if other["cached"] == other["tasks"] else ""
        found.append(f"{_count(other['tasks'], 'task')}{cached} ran with other versions: {names}.")
    return found


def _is_shown(name: str, value: Any) -> bool:
    return value not in (None, "") and not any(fnmatch(name, hidden) for hidden in _HIDDEN)


def _gpu_label(gpu: Mapping[str, Any]) -> str:
    number = f"{gpu['devices']} × " if (gpu.get("devices") or 1) > 1 else ""
    return f"{number}{gpu['name']} ({bytes_label(gpu['memory_nbytes'])})"


def _value_text(value: Any) -> str:
    value = from_home(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"
