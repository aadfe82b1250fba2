"""Write the tables of a run as Parquet, one file a table with the rows of all slices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linumpy.core.errors import InputError
from linumpy.core.extras import extra_advice
from linumpy.store.atomic import atomic_path

if TYPE_CHECKING:
    from linumpy.gpu.arrow import ArrowBatch

logger = logging.getLogger(__name__)


def write_tables(output: Path) -> list[Path]:
    """Write ``*.parquet`` beside the CSV tables of an output folder, and ``tiles.parquet``.

    A table that cannot be read, or that is not there, is left out. Without PyArrow none is written.

    Returns
    -------
    The files that were written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        logger.info("no Parquet tables: they need pyarrow; %s", extra_advice("tables"))
        return []
    written = []
    for name, make in _tables(output):
        try:
            table = pyarrow.table(make())
        except InputError as error:
            logger.warning("no %s: %s", name, error)
            continue
        with atomic_path(output / name, overwrite=True) as aside:
            parquet.write_table(table, aside, compression="zstd")
        written.append(output / name)
    return written


def _tables(output: Path) -> Iterator[tuple[str, Callable[[], ArrowBatch]]]:
    from linumpy.io.tables import read_shifts, read_slice_config
    from linumpy.quality.arrow_tables import shifts_table, slice_config_table, tile_positions_table
    from linumpy.quality.run import Run

    for stem, read, to_arrow in (
        ("shifts_xy", read_shifts, shifts_table),
        ("shifts_xy_clean", read_shifts, shifts_table),
        ("slice_config", read_slice_config, slice_config_table),
    ):
        path = output / f"{stem}.csv"
        if path.is_file():
            yield f"{stem}.parquet", partial(_converted, path, read, to_arrow)
    if any((output / "models").glob("z*/register_tiles.json")):
        run = Run(output)
        yield "tiles.parquet", lambda: tile_positions_table(run.tile_registrations.values())


def _converted(
    path: Path, read: Callable[[Path], Any], to_arrow: Callable[[Any], ArrowBatch]
) -> ArrowBatch:
    return to_arrow(read(path))
