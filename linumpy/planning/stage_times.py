"""Model of how long each process takes, fitted to measured records.

A task takes so many seconds to start, so many for each GiB that it works on (for each slice, where
`linumpy.planning.processes` counts items), and so many for each tile or slice. The model is
`stage_times.json`, which

    python -m linumpy.planning.stage_times RECORD...

brings up to date from records that `benchmarks/stage_times.py` wrote. What no record holds yet is
estimated, and says so.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.io.models import read_json
from linumpy.store.atomic import write_json

MODEL = Path(__file__).with_name("stage_times.json")
GIB = 1 << 30
DEVICES = ("cpu", "gpu")


@dataclass(frozen=True)
class StageTime:
    """Time of a process on one core, or on one GPU with a few cores.

    Attributes
    ----------
    start_s
        Seconds until it works.
    per_unit_s, per_piece_s
        Seconds a GiB (or a slice, for processes that count items) after that, and seconds for each
        tile of what works on tiles, each slice of what works on slices.
    source
        The record, or what an estimate rests on.
    estimated
        Whether it was never measured.
    busy_cores, busy_gpu
        Cores, and share of its GPU, that it keeps busy while it runs alone on a GPU.
    slower_a_gpu
        Share of its time that it takes longer for each further GPU of its machine, whose memory and
        driver all tasks share.
    """

    start_s: float
    per_unit_s: float
    source: str
    estimated: bool = False
    per_piece_s: float = 0.0
    busy_cores: float = 1.0
    busy_gpu: float = 0.0
    slower_a_gpu: float = 0.0

    def seconds(self, units: float, pieces: float = 0.0) -> float:
        """Return the seconds of work, after the start, on so many units and pieces."""
        return self.per_unit_s * units + self.per_piece_s * pieces


@dataclass(frozen=True)
class StageTimes:
    """The model.

    Attributes
    ----------
    records
        Date and machine of each record, by its name.
    times
        By device (``cpu``, ``gpu``) and process; ``, raw`` after the name of a process that reads
        raw tiles instead of a grid.
    """

    records: dict[str, dict[str, Any]]
    times: dict[str, dict[str, StageTime]]

    def find(self, name: str, device: str, *, raw: bool = False) -> StageTime | None:
        """Return the time of a process; None where there is none."""
        known = self.times[device]
        return (known.get(f"{name}, raw") if raw else None) or known.get(name)


def read_stage_times(path: Path | str = MODEL) -> StageTimes:
    """Read a model.

    Raises
    ------
    InputError
        When the file is none.
    """
    content = read_json(Path(path))
    try:
        times = {
            device: {name: StageTime(**entry) for name, entry in content["times"][device].items()}
            for device in DEVICES
        }
        return StageTimes(content["records"], times)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a model of stage times ({error})") from error


def times_of_record(record: Mapping[str, Any], source: str) -> dict[str, StageTime]:
    """Return the times in a record of ``benchmarks/stage_times.py``.

    They are fitted, none below 0, to all places of the record, where 10 % count alike in short
    times and in long ones. On the CPU seconds are those of the processor, which other work on the
    machine hardly changes.
    """
    key = "cpu_seconds" if record["device"] == "cpu" else "seconds"
    names = {name: None for place in record["places"] for name in place["processes"]}
    found = {}
    for name in names:
        rows = [(p, p["processes"][name]) for p in record["places"] if name in p["processes"]]
        time = _fit(rows, key, source)
        if time is not None:
            found[name] = time
    return found


def _fit(
    rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], key: str, source: str
) -> StageTime | None:
    """Fit a process' time to its measurements, one a place; None where they are too few."""
    import numpy as np
    from scipy.optimize import nnls

    work = rows[0][1]["work"]
    seconds = np.array([figures[key] for _, figures in rows])
    units = np.array([f["work_size"] / (1 if work == "items" else GIB) for _, f in rows])
    columns = [np.ones(len(rows)), units]
    counted = {"grid": "n_tiles", "slices": "n_slices"}.get(work)
    if counted is not None and len(rows) > 2:
        columns.append(np.array([float(place[counted]) for place, _ in rows]))
    if len(rows) < 2:
        return None
    terms, _ = nnls(np.stack(columns, axis=1) / seconds[:, None], np.ones(len(rows)))
    start, rate, each = (round(float(t), 4) for t in (*terms, 0.0)[:3])
    return StageTime(start, rate, source, per_piece_s=each)


def update(model: StageTimes, records: Mapping[str, Mapping[str, Any]]) -> StageTimes:
    """Return a model updated with what records state, by their names."""
    times = {device: dict(entries) for device, entries in model.times.items()}
    described = dict(model.records)
    for name, record in records.items():
        machine = record["machine"]
        described[name] = {
            "date": record["date"],
            "machine": machine.get("gpu") if record["device"] == "gpu" else machine["cpu"],
            "cores": machine["cores"] if record["device"] == "gpu" else 1,
        }
        known = times[record["device"]]
        for process, time in times_of_record(record, name).items():
            # A record of one task after the other shows nothing of what they share.
            shared = known.get(process, time)
            known[process] = replace(
                time,
                busy_cores=shared.busy_cores,
                busy_gpu=shared.busy_gpu,
                slower_a_gpu=shared.slower_a_gpu,
            )
    return StageTimes(described, times)


def write_stage_times(model: StageTimes, path: Path) -> None:
    """Write a model."""
    content = {
        "records": model.records,
        "times": {
            device: {name: asdict(entries[name]) for name in sorted(entries)}
            for device, entries in model.times.items()
        },
    }
    write_json(path, content)


def main(arguments: Sequence[str]) -> None:
    """Bring the model up to date from the records named."""
    records = {Path(name).name: read_json(Path(name)) for name in arguments}
    write_stage_times(update(read_stage_times(), records), MODEL)


if __name__ == "__main__":
    main(sys.argv[1:])
