"""Which stage axis runs along which axis of the array."""

from __future__ import annotations

from linumpy.errors import InputError


def parse_stage_to_array(text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Read a mapping such as ``+x,+y``.

    Returns
    -------
    tuple
        For axis 1 and axis 2: the stage axis (0 = x, 1 = y) that runs along it, and its sign.

    Raises
    ------
    InputError
        When the text does not name x and y once each, with signs.
    """
    parts = [part.strip() for part in text.split(",")]
    axes = [part.lstrip("+-") for part in parts]
    signs_are_single = all(len(part) == 2 and part[0] in "+-" for part in parts)
    if sorted(axes) != ["x", "y"] or not signs_are_single:
        raise InputError(
            f"stage_to_array = {text!r}: expected a signed x and a signed y, such as +x,+y or -y,+x"
        )
    first, second = (("xy".index(part[1]), 1 if part[0] == "+" else -1) for part in parts)
    return first, second
