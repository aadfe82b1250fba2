"""Models of an acquisition that is not complete: from the first slice, then from more of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import CPU, Device
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.follow.reasons import FOCUS_LIMIT
from linumpy.follow.state import KEPT_LINES
from linumpy.follow.verdict import PASS
from linumpy.io.models import read_json
from linumpy.mosaic.grid_options import GridOptions
from linumpy.stage_params.slices import SliceParams
from linumpy.store.atomic import atomic_path, write_json

LEARNED_FROM = "learned_from.json"
_COUNTS = (2, 4, 8)
"""Slices without a finding after which models are learned from all of them."""
_MANY = 3
"""Slices that agree against the models before these are wrong: an operator was told of them all."""
_ALIKE = 0.5
"""Rayleigh lengths within which foci are alike: half of what is told."""
_SHARE = 0.5
"""Share of the time that a slice takes which learning may take: no verdict waits for it."""


def learn(
    folder: Path,
    inputs: Sequence[Any],
    params: SliceParams,
    *,
    device: Device = CPU,
    since: int = -1,
    right: Sequence[int] = (),
) -> None:
    """Learn models from raw slices and put them into a folder, in place of those that are there.

    Parameters
    ----------
    since, right
        The last slice that was judged by models which were found wrong, and those up to it that
        were right; both are kept beside the models.
    """
    from linumpy.slices.learn_models import learn_models

    start = time.monotonic()
    models = learn_models(inputs, params, device=device)
    with atomic_path(folder, overwrite=True, directory=True) as made:
        models.save(made)
        ids = [each.slice_id for each in inputs]
        seconds = round(time.monotonic() - start, 2)
        told = {"slices": ids, "seconds": seconds, "since": since, "right": list(right)}
        write_json(made / LEARNED_FROM, told)


def known_focus(folder: Path, slice_id: int, lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Return how far the focus of a judged slice lies from where it was learned, Rayleigh lengths.

    None where that was not measured, or by models that were wrong; 0 for slices that models were
    learned from, where nothing else was measured.
    """
    known = _known(folder)
    if slice_id <= known["since"]:
        return 0.0 if slice_id in known["right"] else None
    shifts = [line["figures"].get("focus_shift") for line in lines if line["slice"] == slice_id]
    shift = next(iter(shifts), None)
    if shift is None:
        return 0.0 if slice_id in known["slices"] else None
    return float(shift)


def slices_against_models(
    known: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Return slices that agree among themselves in their focus, and show that the models are wrong.

    Models learned from a slice out of focus tell all later ones. One that shows agarose tells its
    focus by itself: the models are wrong where `_MANY` slices or more agree, and more than agree
    with the models. None, once `KEPT_LINES` no longer hold all slices since these models: what
    changes later is the focus of slices, and a restart must not count others.

    Parameters
    ----------
    known
        Of `LEARNED_FROM`.
    lines
        Of ``verdicts.jsonl``.
    """
    lines = lines[-KEPT_LINES:]
    if len(lines) == KEPT_LINES and lines[0]["slice"] > known["since"]:
        return []
    shifts = {
        int(line["slice"]): float(line["figures"].get("focus_shift") or 0)
        for line in lines
        if line["slice"] > known["since"] and line["figures"].get("agarose")
    }
    off = {k: shift for k, shift in shifts.items() if abs(shift) >= FOCUS_LIMIT}
    groups = [[k for k, s in off.items() if 0 <= s - least <= _ALIKE] for least in off.values()]
    most = max(groups, key=len, default=[])
    agree = len(shifts) - len(off) + len(known["right"])
    return most if len(most) >= _MANY and len(most) > agree else []


def slices_to_learn_from(folder: Path, lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the slices to learn from now; none while the present models serve.

    Models are learned again after 2, 4 and 8 slices without a finding, where the slices take long
    enough for that.

    Parameters
    ----------
    folder
        Models so far.
    lines
        Of ``verdicts.jsonl``.
    """
    known = _known(folder)
    if not known["slices"]:
        return []
    passed = [int(line["slice"]) for line in lines if line["verdict"] == PASS]
    good = [*known["right"], *(k for k in passed if k > known["since"])]
    count = max((n for n in _COUNTS if n <= len(good)), default=0)
    if not count or len(known["slices"]) >= count:
        return []
    needs_s = known["seconds"] / len(known["slices"]) * count
    usual_s = float(np.median([line["figures"]["duration_s"] for line in lines]))
    return good[:count] if needs_s <= _SHARE * usual_s else []


def _known(folder: Path) -> dict[str, Any]:
    """Return what models were learned from; nothing without the file, or of a damaged one."""
    path = folder / LEARNED_FROM
    known: dict[str, Any] = {"slices": [], "seconds": 0.0, "since": -1, "right": []}
    if not path.is_file():
        return known
    try:
        found = {**known, **read_json(path)}
        return {key: type(value)(found[key]) for key, value in known.items()}
    except (InputError, TypeError, ValueError) as error:
        logger.warning("%s: not what linumpy wrote (%s); the models stay as they are", path, error)
        return known


def learn_again(
    folder: Path,
    root: Path,
    lines: Sequence[Mapping[str, Any]],
    options: GridOptions,
    *,
    device: Device = CPU,
) -> None:
    """Learn models anew where there are more slices, or better ones; else leave them.

    Models that were not learned here are never replaced.
    """
    known = _known(folder)
    if not known["slices"]:
        return
    since, right = known["since"], known["right"]
    ids = slices_to_learn_from(folder, lines)
    against = slices_against_models(known, lines)
    if against:
        # A slice with another reason against it teaches nothing.
        of_focus = [line["slice"] for line in lines if _is_focus_alone(line)]
        ids = right = [k for k in against if k in of_focus]
        since = int(lines[-1]["slice"])
    if not ids:
        return
    from linumpy.slices.raw_source import raw_inputs

    try:
        inputs = raw_inputs(root, ids, options=options)
        params = SliceParams.from_values({})
        learn(folder, inputs, params, device=device, since=since, right=right)
    except Exception as error:  # Verdicts go on, whatever it is.
        logger.warning("%s: stay as they are; learning again ended (%s)", folder, error)
        return
    if against:
        logger.warning(
            "%s: the focus of slices %s is alike, and not that of slices %s, which these models "
            "were learned from: learned again", folder, against, known["slices"],
        )  # fmt: skip
    else:
        logger.info("%s: learned again from %d slices", folder, len(ids))


def _is_focus_alone(line: Mapping[str, Any]) -> bool:
    """Whether all that is said against a slice is the focus of all its tiles."""
    return all(r["kind"] == "defocus" and not r["tiles"] for r in line.get("reasons", ()))
