"""Command line of the phantom: one flag a quantity."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from linumpy.core.errors import InputError
from linumpy.phantom.params import PhantomParams, preset
from linumpy.phantom.physics import NAME, foreign


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag a parameter; a flag that is not given leaves the preset's value."""
    group = parser.add_argument_group("quantities (defaults are those of the preset small)")
    for item in dataclasses.fields(PhantomParams):
        element = item.metadata["element"]
        options: dict[str, Any] = {"type": element or type(item.default)}
        if element is not None:
            options["nargs"] = "*"
            options["metavar"] = "Z:IX:IY" if element is str else "ID"
        else:
            options["metavar"] = {int: "N", float: "X", str: "TEXT"}[type(item.default)]
        text = item.metadata["help"]
        if element is None:
            text += f" [{str(item.default).replace('%', '%%')}]"
        group.add_argument(f"--{item.name}", default=argparse.SUPPRESS, help=text, **options)


def from_flags(
    arguments: argparse.Namespace,
    preset_name: str,
    *,
    seed: int = 0,
    only: Sequence[str] | None = None,
) -> PhantomParams:
    """Return the preset's parameters with those changed that the command line gave.

    The preset ``foreign`` draws its physics from `seed`, or the effects in `only` alone.

    Raises
    ------
    InputError
        When effects are named and the preset is not ``foreign``.
    """
    names = {item.name for item in dataclasses.fields(PhantomParams)}
    given = {name: value for name, value in vars(arguments).items() if name in names}
    changes = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    if preset_name == NAME:
        return foreign(seed, only, **changes)
    if only is not None:
        raise InputError(f"--only: expected --preset {NAME}, got {preset_name}")
    return preset(preset_name, **changes)
