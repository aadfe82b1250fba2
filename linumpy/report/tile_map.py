"""Maps of a slice's tiles as SVG, written directly: Matplotlib takes 40 times as long for each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from linumpy.core.style import FAINT, INK, MAP, MUTED

_POINTS_IN = 72.0
_WIDTH_IN = 5.2
_LEFT_IN, _BOTTOM_IN, _TOP_IN, _RIGHT_IN = 0.85, 0.75, 0.1, 0.1
_BAR_IN = 0.75
"""Right of the axes: the colour bar with its numbers."""
_AXIS_LABEL_IN, _SIDE_LABEL_IN, _LEGEND_IN = 0.32, 0.62, 0.52
_TICK_PT, _NUMBER_PT, _TEXT_PT, _LABEL_PT = 2.5, 8.0, 8.0, 8.5
_MOST_TICKS = 6
_COLOURS = 32
_LETTER = 0.56
"""Width of a letter, as a share of its height."""
_HEAD = 1.5
"""Half width of an arrow's head, and a third of its length, points."""

Box = tuple[float, float, float, float]


class TileMap:
    """A drawing in mm, axis 1 down and axis 2 to the right, as in every image of the report.

    Attributes
    ----------
    width_pt, height_pt
        Size of the drawing.
    texts
        What is written, and about where: low x, low y, high x, high y in points.
    """

    def __init__(
        self, centres_um: np.ndarray, fov_um: np.ndarray, height_in: float, *, bar: bool = False
    ) -> None:
        self.width_pt, self.height_pt = _WIDTH_IN * _POINTS_IN, height_in * _POINTS_IN
        self.texts: list[tuple[str, Box]] = []
        self._parts: list[str] = []
        places = centres_um if len(centres_um) else np.zeros((1, 2))
        low_mm = (places.min(axis=0) - 0.6 * fov_um) / 1000
        span_mm = (places.max(axis=0) + 0.6 * fov_um) / 1000 - low_mm
        right_in = _BAR_IN if bar else _RIGHT_IN
        room = np.array(
            [height_in - _BOTTOM_IN - _TOP_IN, _WIDTH_IN - _LEFT_IN - right_in]
        ) * _POINTS_IN  # fmt: skip
        self._pt_mm = float(np.min(room / span_mm))
        self._size = span_mm * self._pt_mm
        # Axes of equal scale lie in the middle of their room.
        self._corner = np.array([_TOP_IN, _LEFT_IN]) * _POINTS_IN + (room - self._size) / 2
        self._low_mm = low_mm
        self._axes(span_mm)
        self._outline(centres_um, fov_um)

    def place(self, points_um: np.ndarray) -> np.ndarray:
        """Return where points (axis 1, axis 2) lie in the drawing, shape (n, 2): y, x."""
        found = (np.asarray(points_um) / 1000 - self._low_mm) * self._pt_mm + self._corner
        return np.asarray(found)

    def dots(self, points_um: np.ndarray, radius_pt: float, colour: str, *, square: bool) -> None:
        """Draw filled circles or squares."""
        self._path(
            "".join(_mark(y, x, radius_pt, square) for y, x in self.place(points_um)), colour
        )

    def crosses(self, points_um: np.ndarray, half_pt: float, colour: str) -> None:
        """Draw crosses."""
        shapes = "".join(_cross(y, x, half_pt) for y, x in self.place(points_um))
        self._path(shapes, colour, line_pt=1.5)

    def arrows(self, from_um: np.ndarray, to_um: np.ndarray, colour: str) -> None:
        """Draw arrows."""
        ends = zip(self.place(from_um), self.place(to_um), strict=True)
        self._path("".join(_arrow(start, end) for start, end in ends), colour)

    def lines(
        self, from_um: np.ndarray, to_um: np.ndarray, colour: str, line_pt: float, dash: str = ""
    ) -> None:
        """Draw lines."""
        ends = zip(self.place(from_um), self.place(to_um), strict=True)
        self._path("".join(f"M{_at(a)}L{_at(b)}" for a, b in ends), colour, line_pt, dash)

    def coloured_lines(
        self, from_um: np.ndarray, to_um: np.ndarray, values: np.ndarray, label: str
    ) -> None:
        """Draw lines in colours of values from 0 to 1, and the colour bar."""
        colours = _colour_map()
        number = np.clip(np.floor(np.asarray(values) * _COLOURS), 0, _COLOURS - 1)
        for n, colour in enumerate(colours):
            chosen = number == n
            if chosen.any():
                self.lines(from_um[chosen], to_um[chosen], colour, 4.0)
        top, height = self._corner[0] + 0.1 * self._size[0], 0.8 * self._size[0]
        left = self._corner[1] + self._size[1] + 6
        step = height / _COLOURS
        for n, colour in enumerate(colours):
            # Each reaches below the next one, so that no line is seen between them.
            y = top + height - (n + 1) * step
            deep = min(2 * step, top + height - y)
            self._path(f"M{left:.2f},{y:.2f}h8v{deep:.2f}h-8z", colour)
        for value in (0.0, 0.5, 1.0):
            y = top + height * (1 - value)
            self._path(f"M{left + 8:.2f},{y:.2f}h2", MUTED, 0.8)
            self._text(left + 12, y + 0.35 * _NUMBER_PT, f"{value:g}", "start", _NUMBER_PT)
        self._text(self.width_pt - 4, top + height / 2, label, "middle", _LABEL_PT, turned=True)

    def legend(self, entries: Iterable[tuple[str, str, str]]) -> None:
        """Write below the axes what marks (``o``, ``s`` or ``x``) of a colour mean."""
        shown = list(entries)
        widths = [14 + _LETTER * _TEXT_PT * len(text) for _, _, text in shown]
        gap = 12.0
        x = (self.width_pt - sum(widths) - gap * (len(shown) - 1)) / 2
        y = self._corner[0] + self._size[0] + _LEGEND_IN * _POINTS_IN
        for (mark, colour, text), width in zip(shown, widths, strict=True):
            if mark == "x":
                self._path(_cross(y - 3, x + 6, 2.8), colour, 1.5)
            else:
                self._path(_mark(y - 3, x + 6, 2.4, mark == "s"), colour)
            self._text(x + 14, y, text, "start", _TEXT_PT)
            x += width + gap

    def svg(self, title: str) -> str:
        """Return the drawing as an SVG element; colours are those of `linumpy.core.style`."""
        from xml.sax.saxutils import quoteattr

        view = f"0 0 {self.width_pt:.1f} {self.height_pt:.1f}"
        head = f'<svg viewBox="{view}" role="img" aria-label={quoteattr(title)}>'
        return head + "".join(self._parts) + "</svg>"

    def _axes(self, span_mm: np.ndarray) -> None:
        (y, x), (height, width) = self._corner, self._size
        self._path(f"M{x:.2f},{y:.2f}v{height:.2f}h{width:.2f}", MUTED, 0.8)
        below = y + height
        marks = []
        for value, text in _ticks(self._low_mm[1], span_mm[1]):
            at = x + (value - self._low_mm[1]) * self._pt_mm
            marks.append(f"M{at:.2f},{below:.2f}v{_TICK_PT}")
            self._text(at, below + _TICK_PT + _NUMBER_PT, text, "middle", _NUMBER_PT)
        for value, text in _ticks(self._low_mm[0], span_mm[0]):
            at = y + (value - self._low_mm[0]) * self._pt_mm
            marks.append(f"M{x:.2f},{at:.2f}h-{_TICK_PT}")
            self._text(x - _TICK_PT - 2, at + 0.35 * _NUMBER_PT, text, "end", _NUMBER_PT)
        self._path("".join(marks), MUTED, 0.8)
        under = below + _AXIS_LABEL_IN * _POINTS_IN
        self._text(x + width / 2, under, "axis 2 (mm)", "middle", _LABEL_PT)
        beside = x - _SIDE_LABEL_IN * _POINTS_IN
        self._text(beside, y + height / 2, "axis 1 (mm)", "middle", _LABEL_PT, turned=True)

    def _outline(self, centres_um: np.ndarray, fov_um: np.ndarray) -> None:
        height, width = fov_um / 1000 * self._pt_mm
        corners = self.place(centres_um - fov_um / 2) if len(centres_um) else ()
        box = f"h{width:.2f}v{height:.2f}h-{width:.2f}z"
        self._path("".join(f"M{_at(corner)}{box}" for corner in corners), FAINT, 0.8)

    def _path(self, shapes: str, colour: str, line_pt: float = 0.0, dash: str = "") -> None:
        """Add shapes, filled unless a line's width is given."""
        if not shapes:
            return
        style = f"fill: {colour}"
        if line_pt:
            style = f"fill: none; stroke: {colour}; stroke-width: {line_pt:g}"
        if dash:
            style += f"; stroke-dasharray: {dash}"
        self._parts.append(f'<path d="{shapes}" style="{style}"/>')

    def _text(
        self, x: float, y: float, text: str, anchor: str, size_pt: float, *, turned: bool = False
    ) -> None:
        """Write a text above a base line that begins, ends or has its middle at x; or along y."""
        long = _LETTER * size_pt * len(text)
        before = {"start": 0.0, "middle": long / 2, "end": long}[anchor]
        box = (x - before, y - 0.8 * size_pt, x - before + long, y + 0.2 * size_pt)
        if turned:
            box = (x - 0.8 * size_pt, y - long / 2, x + 0.2 * size_pt, y + long / 2)
        self.texts.append((text, box))
        style = f"font-size: {size_pt:g}px; text-anchor: {anchor}; fill: {INK}"
        where = f'transform="translate({x:.2f} {y:.2f}) rotate(-90)"' if turned else (
            f'x="{x:.2f}" y="{y:.2f}"'
        )  # fmt: skip
        self._parts.append(f'<text {where} style="{style}">{text}</text>')


def _at(point: Sequence[float] | np.ndarray) -> str:
    return f"{point[1]:.2f},{point[0]:.2f}"


def _mark(y: float, x: float, radius: float, square: bool) -> str:
    if square:
        return f"M{x - radius:.2f},{y - radius:.2f}h{2 * radius:g}v{2 * radius:g}h-{2 * radius:g}z"
    arc = f"a{radius:g},{radius:g} 0 1,0 "
    return f"M{x - radius:.2f},{y:.2f}{arc}{2 * radius:g},0{arc}-{2 * radius:g},0"


def _cross(y: float, x: float, half: float) -> str:
    side = 2 * half
    first = f"M{x - half:.2f},{y - half:.2f}l{side:g},{side:g}"
    return f"{first}M{x + half:.2f},{y - half:.2f}l-{side:g},{side:g}"


def _arrow(start: np.ndarray, end: np.ndarray) -> str:
    """Return an arrow as one filled shape; a short one is all head."""
    length = float(np.hypot(*(end - start)))
    if length == 0:
        return ""
    along = (end - start) / length
    across = np.array([along[1], -along[0]])
    head = min(3 * _HEAD, length)
    neck, half = end - head * along, _HEAD * head / (3 * _HEAD)
    points = [
        start + half / 3 * across,
        neck + half / 3 * across,
        neck + half * across,
        end,
        neck - half * across,
        neck - half / 3 * across,
        start - half / 3 * across,
    ]
    return "M" + "L".join(map(_at, points)) + "z"


def _ticks(low: float, span: float) -> list[tuple[float, str]]:
    """Return round numbers within a range, at most seven, and how they are written."""
    power = 10.0 ** math.floor(math.log10(span / _MOST_TICKS))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if span / (s * power) <= _MOST_TICKS)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    digits += round(step * 10**digits, 6) % 1 > 0
    first = math.ceil(low / step - 1e-9)
    last = math.floor((low + span) / step + 1e-9)
    return [
        (n * step, f"{n * step:.{digits}f}".replace("-", "\u2212")) for n in range(first, last + 1)
    ]


@cache
def _colour_map() -> tuple[str, ...]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return tuple(to_hex(colormaps[MAP]((n + 0.5) / _COLOURS)) for n in range(_COLOURS))
