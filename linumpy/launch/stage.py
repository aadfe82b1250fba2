"""Validate stage positions in headers: against tile indices, and against each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from linumpy.io.info import TileInfo
from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.launch.problems import Problem

SAME_PLACE = 0.05
"""Share of the field of view under which two stage positions are one."""

_FAR = 10
"""Fields of view from a tile to the next that no stage leaves out between them."""

Place = tuple  # ix, iy
Placed = Mapping[Place, tuple[Path, TileInfo]]


def stage_problems(slices: Mapping[int, Placed], stage_to_array: str) -> list[Problem]:
    """Return how stage positions contradict the map of stage axes, their unit, or each other.

    Parameters
    ----------
    slices
        Tiles by their indices, with folders and headers, by slice.
    """
    return [
        *_map_problems(slices, stage_to_array),
        *(problem for tiles in slices.values() for problem in _same_places(tiles.values())),
    ]


def _map_problems(slices: Mapping[int, Placed], stage_to_array: str) -> list[Problem]:
    axes = parse_stage_to_array(stage_to_array)
    seen = {number: _steps_mm(tiles) for number, tiles in slices.items()}
    seen = {number: steps for number, steps in seen.items() if any(steps)}
    if not seen:
        return []
    far = [number for number, steps in seen.items() if _is_far(steps, slices[number])]
    if far:
        path, info = next(iter(slices[far[0]].values()))
        move = max(abs(v) for step in seen[far[0]] if step for v in step)
        return [
            Problem(
                f"{path}: from a tile to the next the stage moves by {move:g} mm, a tile is "
                f"{info.width_um / 1e3:g} x {info.height_um / 1e3:g} mm; stage_x_pos_mm and "
                "stage_y_pos_mm are in mm"
            )
        ]
    found = Counter(tuple(map(_axis_of, steps)) for steps in seen.values())
    wrong = {n: steps for n, steps in seen.items() if not _fits(steps, axes)}
    if 2 * len(wrong) <= len(seen):
        # One slice that moves otherwise is a glitch, which is found by its tiles.
        return []
    number, steps = next(iter(wrong.items()))
    letter, step, axis = next(
        (letter, step, axis)
        for letter, step, axis in zip("xy", steps, axes)  # noqa: B905 - new in Python 3.10
        if step and _axis_of(step) != axis
    )
    told = (
        f"--stage_to_array {stage_to_array}: contradicts the headers of {len(wrong)} of "
        f"{len(seen)} slices; in slice z{number:02d}, from a tile to the next in {letter}, the "
        f"stage moves by {1e3 * step[0]:.0f} um in x and {1e3 * step[1]:.0f} um in y"
    )
    first, second = found.most_common(1)[0][0]
    if first is None or second is None or first[0] == second[0]:
        return [Problem(f"{told}; expected {_map_text([axis])} there")]
    return [Problem(f"{told}; they fit --stage_to_array={_map_text((first, second))}")]


def _steps_mm(tiles: Placed) -> list[tuple[float, float] | None]:
    """Return how the stage moves (x, y) from a tile to the next in x, and in y; medians."""
    steps: list[tuple[float, float] | None] = []
    for dx, dy in ((1, 0), (0, 1)):
        moves = []
        for (x, y), (_, info) in tiles.items():
            other = tiles.get((x + dx, y + dy))
            if other is not None:
                moves.append((_move(info, other[1], "x"), _move(info, other[1], "y")))
        known = [(x, y) for x, y in moves if x is not None and y is not None]
        if known:
            steps.append((median(m[0] for m in known), median(m[1] for m in known)))
        else:
            steps.append(None)
    return steps


def _move(first: TileInfo, second: TileInfo, axis: str) -> float | None:
    name = f"stage_{axis}_mm"
    start, end = getattr(first, name), getattr(second, name)
    return None if start is None or end is None else float(end - start)


def _axis_of(step: tuple[float, float] | None) -> tuple[int, int] | None:
    """Return the stage's axis that moves, and its sign; None where there is no step."""
    if step is None or not any(step):
        return None
    axis = int(abs(step[1]) > abs(step[0]))
    return axis, 1 if step[axis] > 0 else -1


def _fits(steps: Sequence[tuple[float, float] | None], axes: Sequence[tuple[int, int]]) -> bool:
    pairs = zip(map(_axis_of, steps), axes)  # noqa: B905 - new in Python 3.10
    return all(seen in (None, expected) for seen, expected in pairs)


def _is_far(steps: Sequence[tuple[float, float] | None], tiles: Placed) -> bool:
    info = next(iter(tiles.values()))[1]
    most_mm = _FAR * max(info.fov_um) / 1e3
    return any(abs(value) > most_mm for step in steps if step for value in step)


def _map_text(axes: Sequence[tuple[int, int]]) -> str:
    return ",".join(f"{'+' if sign > 0 else '-'}{'xy'[axis]}" for axis, sign in axes)


def _same_places(tiles: Iterable[tuple[Path, TileInfo]]) -> list[Problem]:
    """Return pairs of tiles that are closer than `SAME_PLACE` along both axes."""
    cells: dict[tuple[int, int], list[tuple[float, float, Path]]] = defaultdict(list)
    found = []
    for path, info in tiles:
        if info.stage_x_mm is None or info.stage_y_mm is None:
            continue
        x, y = (
            1e3 * mm / (SAME_PLACE * fov)
            for mm, fov in zip(  # noqa: B905 - new in Python 3.10
                (info.stage_x_mm, info.stage_y_mm), info.fov_um
            )
        )
        near = [(int(x // 1) + i, int(y // 1) + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
        for other_x, other_y, other in (twin for cell in near for twin in cells.get(cell, ())):
            if abs(x - other_x) < 1 and abs(y - other_y) < 1:
                found.append(
                    f"{other} and {path}: two tiles at one stage position "
                    f"({info.stage_x_mm:g}, {info.stage_y_mm:g}) mm"
                )
        cells[near[4]].append((x, y, path))
    if not found:
        return []
    if len(found) == 1:
        return [Problem(f"{found[0]}; expected tiles a step apart")]
    return [Problem(f"{len(found)} pairs of tiles at one stage position", found[:3])]
