"""Outputs of the diagnostic scripts: JSON, and a plot when asked for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linumpy.io.models import model_place, save_model
from linumpy.io.previews import figure_png
from linumpy.store.atomic import atomic_path, refuse_any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_diagnostic(args: argparse.Namespace, model: Any, draw: Callable[[Any], Figure]) -> None:
    """Write a diagnostic to ``args.output``, and draw it to ``args.picture`` if that is given.

    Raises
    ------
    OutputExistsError
        When an output exists and ``args.overwrite`` is false; nothing is written.
    """
    refuse_any(args.overwrite, args.output, args.picture)
    save_model(*model_place(args.output), model)
    if args.picture is not None:
        write_figure(args.picture, draw(model), args.overwrite)


def write_figure(path: Path, figure: Figure, overwrite: bool) -> None:
    """Write a figure as PNG."""
    with atomic_path(path, overwrite=overwrite) as partial:
        partial.write_bytes(figure_png(figure))
