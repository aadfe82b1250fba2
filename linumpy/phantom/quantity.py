"""Declare a quantity of the phantom: default, unit, bounds and help text in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from linumpy.core.errors import InputError


def quantity(
    default: Any,
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    element: type | None = None,
) -> Any:
    """Declare a parameter; `low`/`high` are allowed values, `above`/`below` are not."""
    bounds = {"low": low, "high": high, "above": above, "below": below}
    return field(default=default, metadata={"help": text, "element": element, **bounds})


def check_bounds(name: str, value: Any, bounds: Mapping[str, Any]) -> None:
    """Raise when a number is not finite or outside its bounds; names the quantity."""
    if isinstance(value, tuple | str):
        return
    if not math.isfinite(value):
        raise InputError(f"{name} = {value}: expected a finite number")
    rules = (
        ("low", value < (bounds["low"] if bounds["low"] is not None else value), "at least"),
        ("high", value > (bounds["high"] if bounds["high"] is not None else value), "at most"),
        ("above", bounds["above"] is not None and value <= bounds["above"], "more than"),
        ("below", bounds["below"] is not None and value >= bounds["below"], "less than"),
    )
    for key, broken, words in rules:
        if broken:
            raise InputError(f"{name} = {value:g}: expected {words} {bounds[key]:g}")
