"""Registry of raw formats: how the tiles of a slice are opened, and the flags of each format."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linumpy.mosaic.grid_options import GridOptions
from linumpy.mosaic.psoct_options import STAGE_TO_ARRAY, add_psoct_options, psoct_options

if TYPE_CHECKING:
    from linumpy.mosaic.slice_tiles import SliceTiles


@dataclass(frozen=True)
class RawFormat:
    """A format of raw tiles.

    Attributes
    ----------
    name
        Choice of ``--data_type``.
    about
        Its files, for ``--help``.
    opener
        ``module:function`` that returns the `SliceTiles` of a slice: of root, slice id,
        `GridOptions` and, where the format has any, its own options. Not imported for ``--help``.
    stage_to_array
        Default of ``--stage_to_array``.
    add_flags, own_options
        Add the flags of the format's own options to a parser, and return the options of arguments.
    """

    name: str
    about: str
    opener: str
    stage_to_array: str = GridOptions.stage_to_array
    add_flags: Callable[[argparse.ArgumentParser], None] | None = None
    own_options: Callable[[argparse.Namespace], Any] | None = None

    def open(
        self, root: Path | str, slice_id: int, options: GridOptions | None = None, own: Any = None
    ) -> SliceTiles:
        """Check the headers of a slice's tiles and lay them out on their grid.

        Raises
        ------
        InputError
            When files are not what was expected; names the file.
        """
        module, name = self.opener.split(":")
        options = options or GridOptions(stage_to_array=self.stage_to_array)
        tiles: SliceTiles = getattr(import_module(module), name)(
            root, slice_id, options, *([] if own is None else [own])
        )
        return tiles


RAW_FORMATS: dict[str, RawFormat] = {
    raw_format.name: raw_format
    for raw_format in (
        RawFormat("OCT", "folders of tiles", "linumpy.mosaic.raw_tiles:open_raw_tiles"),
        RawFormat(
            "PSOCT",
            ".oct files with a .scan file",
            "linumpy.mosaic.psoct_tiles:open_psoct_tiles",
            STAGE_TO_ARRAY,
            add_psoct_options,
            psoct_options,
        ),
    )
}
"""All raw formats, the default first."""


def add_format_flags(parser: argparse.ArgumentParser) -> None:
    """Add ``--data_type`` and the own flags of all formats."""
    parser.add_argument(
        "--data_type",
        choices=RAW_FORMATS,
        default=next(iter(RAW_FORMATS)),
        help="; ".join(f"{each.name}: {each.about}" for each in RAW_FORMATS.values()),
    )
    for each in RAW_FORMATS.values():
        if each.add_flags is not None:
            each.add_flags(parser)


def chosen_format(parser: argparse.ArgumentParser, args: argparse.Namespace) -> tuple[str, Any]:
    """Return the name of the format and its own options; exit with status 2 on flags of another."""
    for each in RAW_FORMATS.values():
        if each.own_options is None or each.name == args.data_type:
            continue
        defaults = argparse.Namespace(**{name: parser.get_default(name) for name in vars(args)})
        if each.own_options(args) != each.own_options(defaults):
            parser.error(f"flags of {each.name} come with --data_type {each.name} alone")
    chosen = RAW_FORMATS[args.data_type]
    return chosen.name, None if chosen.own_options is None else chosen.own_options(args)
