"""The CSV tables, lists of ids, and the tables as Arrow batches. The first byte chooses."""

from linumpy.brain.gaps.files import read_manifest
from linumpy.io.psoct import read_scan_positions
from linumpy.io.table_rows import parse_ids
from linumpy.io.tables import (
    offsets_from_shifts,
    position_corrections_um,
    read_shifts,
    read_slice_config,
)
from linumpy.quality.arrow_tables import shifts_table, slice_config_table
from tests.faults.fuzz.common import Plain, folder, mutate_text, survive

FILE = folder() / "table.csv"


def mutate(data: bytes, max_size: int, seed: int, plain: Plain) -> bytes:
    return data[:1] + mutate_text(data[1:], max_size - 1, seed, plain)


def one(data: bytes) -> None:
    kind = data[:1]
    FILE.write_bytes(data[1:])
    if kind == b"c":
        rows = survive(lambda: read_slice_config(FILE))
        if rows is not None:
            survive(lambda: slice_config_table(rows))
            survive(lambda: read_slice_config(FILE, known_ids=(0, 1, 7)))
    elif kind == b"s":
        shifts = survive(lambda: read_shifts(FILE))
        if shifts is not None:
            survive(lambda: shifts_table(shifts))
            survive(lambda: offsets_from_shifts(shifts, (1, 2), where=FILE))
            position_corrections_um(shifts)
    elif kind == b"i":
        survive(lambda: parse_ids(data[1:].decode("utf-8", "replace")))
    elif kind == b"m":
        survive(lambda: read_manifest(FILE))
    else:
        survive(lambda: read_scan_positions(FILE))
