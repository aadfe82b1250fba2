"""Save and load what stages learn: dataclasses as JSON, their arrays as NPZ.

A model's file stem is its stage's name. Fields that hold arrays go to ``<stem>.npz``, all others
to ``<stem>.json``, so that a person can read the one and a program plot the other.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from linumpy.core.errors import InputError
from linumpy.metrics.stages import measure
from linumpy.store.atomic import atomic_path, write_json
from linumpy.store.untrusted import JSON_NBYTES, parse_json, read_arrays, read_bounded

M = TypeVar("M")


def save_model(folder: Path | str, stem: str, model: Any) -> None:
    """Write a model's JSON and, when it has array fields, its NPZ; existing ones are replaced.

    The models of stages get their metrics beside them, ``<stem>_metrics.json``.
    """
    from linumpy.core.device import is_device_array, to_host

    plain: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for field in dataclasses.fields(model):
        value = getattr(model, field.name)
        if isinstance(value, np.ndarray) or is_device_array(value):
            arrays[field.name] = to_host(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            plain[field.name] = dataclasses.asdict(value)
        else:
            plain[field.name] = _plain(value)
    folder = Path(folder)
    if arrays:
        with (
            atomic_path(folder / f"{stem}.npz", overwrite=True) as partial,
            partial.open("wb") as file,
        ):
            # A member is given the time of day by savez: fixed names and no pickles keep the
            # file the same for the same arrays, but for that stamp.
            np.savez(file, allow_pickle=False, **arrays)
    write_json(folder / f"{stem}.json", plain)
    metrics = measure(stem, model)
    if metrics is not None:
        write_json(folder / f"{stem}_metrics.json", metrics.as_json())


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, np.generic):
        return value.item()
    return value


def model_place(path: Path) -> tuple[Path, str]:
    """Split the path of a model's JSON into its folder and stem."""
    return path.parent, path.name.removesuffix(".json")


def load_model(folder: Path | str, stem: str, kind: type[M]) -> M:
    """Read a model that `save_model` wrote.

    Raises
    ------
    InputError
        When a file is missing, does not hold the fields of `kind`, or holds numbers that are not
        finite; names the file.
    """
    folder = Path(folder)
    path = folder / f"{stem}.json"
    fields = dict(read_json(path))
    declared = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = [field.name for field in declared]
    # What has a default is newer than some models on disk.
    needed = {
        field.name
        for field in declared
        if field.default is field.default_factory is dataclasses.MISSING
    }
    if needed - set(fields):
        fields.update(read_arrays(folder / f"{stem}.npz"))
    names = [name for name in names if name in fields or name in needed]
    missing = sorted(needed - set(fields))
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)} of a {stem} model")
    for name in names:
        if not _finite(fields[name]):
            raise InputError(f"{path}: {name} of the {stem} model is not finite everywhere")
    for field in declared:
        # JSON has no tuples.
        if str(field.type).startswith("tuple") and isinstance(fields.get(field.name), list):
            fields[field.name] = tuple(fields[field.name])
    try:
        return kind(**{name: fields[name] for name in names})
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise InputError(f"{path}: not a {stem} model ({error})") from error


def _finite(value: Any) -> bool:
    """Whether all numbers in a value are finite, however deep they lie."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind not in "fc" or bool(np.isfinite(value).all())
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def read_json(path: Path | str) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises
    ------
    InputError
        When the file is missing, is not JSON or too much of it, or does not hold an object.
    """
    path = Path(path)
    try:
        data = read_bounded(path, JSON_NBYTES)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    value = parse_json(data, path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
