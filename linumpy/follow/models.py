"""Models of an acquisition that is not complete: from the first slice, then from more of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import CPU, Device
from linumpy.core.log import logger
from linumpy.follow.verdict import PASS
from linumpy.io.models import read_json
from linumpy.mosaic.grid_options import GridOptions
from linumpy.stage_params.slices import SliceParams
from linumpy.store.atomic import atomic_path, write_json

LEARNED_FROM = "learned_from.json"
_COUNTS = (2, 4, 8)
"""Slices without a finding after which models are learned from all of them."""
_SHARE = 0.5
"""Share of the time that a slice takes which learning may take: no verdict waits for it."""


def learn(
    folder: Path, inputs: Sequence[Any], params: SliceParams, *, device: Device = CPU
) -> None:
    """Learn models from raw slices and put them into a folder, in place of those that are there."""
    from linumpy.slices.learn_models import learn_models

    start = time.monotonic()
    models = learn_models(inputs, params, device=device)
    with atomic_path(folder, overwrite=True, directory=True) as made:
        models.save(made)
        ids = [each.slice_id for each in inputs]
        seconds = round(time.monotonic() - start, 2)
        write_json(made / LEARNED_FROM, {"slices": ids, "seconds": seconds})


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
    good = [int(line["slice"]) for line in lines if line["verdict"] == PASS]
    count = max((n for n in _COUNTS if n <= len(good)), default=0)
    if not count or not (folder / LEARNED_FROM).is_file():
        return []
    known = read_json(folder / LEARNED_FROM)
    ids = good[:count]
    if len(known["slices"]) >= count:
        return []
    needs_s = float(known["seconds"]) / len(known["slices"]) * count
    usual_s = float(np.median([line["figures"]["duration_s"] for line in lines]))
    return ids if needs_s <= _SHARE * usual_s else []


def learn_again(
    folder: Path,
    root: Path,
    lines: Sequence[Mapping[str, Any]],
    options: GridOptions,
    *,
    device: Device = CPU,
) -> None:
    """Learn models anew where `slices_to_learn_from` names slices; else leave them as they are."""
    ids = slices_to_learn_from(folder, lines)
    if not ids:
        return
    from linumpy.slices.raw_source import raw_inputs

    try:
        inputs = raw_inputs(root, ids, options=options)
        learn(folder, inputs, SliceParams.from_values({}), device=device)
    except Exception as error:  # Verdicts go on, whatever it is.
        logger.warning("%s: stay as they are; learning again ended (%s)", folder, error)
    else:
        logger.info("%s: learned again from %d slices", folder, len(ids))
