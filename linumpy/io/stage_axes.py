"""Stage axis maps: which axis of the stage runs along which axis of an array."""

from __future__ import annotations

from linumpy.core.errors import InputError


def parse_stage_to_array(text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Read a stage axis map such as ``+x,+y``.

    Returns
    -------
    For axis 1 and axis 2 the stage axis (0 for x, 1 for y) and its sign.

    Raises
    ------
    InputError
        When the text is not two different signed stage axes.
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        pairs = [("xy".index(part[1]), {"+": 1, "-": -1}[part[0]]) for part in parts]
        first, second = pairs
        if first[0] == second[0] or any(len(part) != 2 for part in parts):
            raise ValueError
    except (IndexError, KeyError, ValueError):
        raise InputError(
            f"stage_to_array {text!r}: expected two signed stage axes such as '+x,+y' or '-y,+x'"
        ) from None
    return first, second
