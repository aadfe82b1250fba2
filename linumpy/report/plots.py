"""Plots of the report: SVG that takes the page's colours, with the data behind it as CSV."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree import ElementTree

from linumpy.core.style import BLUE, FAINT, GREEN, INK, MUTED, ORANGE, SKY, VERMILION, new_figure
from linumpy.report.tile_map import TileMap

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, HEIGHT_IN = 5.2, 3.1
"""One panel: read at the width of a phone, and two beside each other on a screen."""

MOST_POINTS = 1500
"""Points of a plot; more of them are drawn as percentiles."""

MOST_ROWS = 20_000
"""Rows of a CSV table inside the page."""

_COLOURS = {
    INK: "var(--ink)", MUTED: "var(--muted)", FAINT: "var(--line)", BLUE: "var(--blue)",
    SKY: "var(--sky)", ORANGE: "var(--orange)", VERMILION: "var(--red)", GREEN: "var(--green)",
    # Texts by default. What lies on an image is not quite black or white, and stays.
    "#000000": "var(--ink)",
}  # fmt: skip
_TAGS = frozenset({"svg", "g", "path", "use", "defs", "clipPath", "rect", "text", "tspan", "image"})
_ATTRIBUTES = frozenset(
    {"id", "d", "style", "transform", "x", "y", "width", "height", "viewBox", "clip-path",
     "preserveAspectRatio"}
)  # fmt: skip
_DECIMALS = re.compile(r"(-?\d+\.\d{2})\d+")
_FONT = re.compile(r"font: ([^;]*?)([\d.]+)px [^;]+")
_REFERENCE = re.compile(r"url\(#([\w-]+)\)")


@dataclass(frozen=True)
class Plot:
    """A plot with the numbers that it shows.

    Attributes
    ----------
    name
        File stem of its CSV, unique in the page.
    title, note
        Heading, and what to see in it.
    columns, rows
        The data, one cell a column.
    """

    name: str
    title: str
    figure: Figure | TileMap
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""

    def render(self) -> dict[str, Any]:
        """Return what the templates show."""
        return {
            "title": self.title,
            "note": self.note,
            "svg": svg(self.figure, self.name, self.title),
            "file": f"{self.name}.csv",
            "csv": csv_address(self.columns, self.rows) if len(self.rows) <= MOST_ROWS else None,
        }


def panel(height: float = HEIGHT_IN) -> tuple[Figure, Axes]:
    """Return an empty figure of one panel."""
    figure = new_figure(WIDTH_IN, height)
    return figure, figure.subplots()


def absent(axes: Axes, text: str) -> None:
    """Write into empty axes why they are empty."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=9)


def svg(figure: Figure | TileMap, name: str, title: str) -> Markup:
    """Draw a figure as an SVG element for an HTML page.

    Its colours are the page's variables, its ids begin with `name`. Only elements and attributes
    that draw are kept, whatever texts the figure holds.
    """
    from markupsafe import Markup

    if isinstance(figure, TileMap):
        return Markup(_in_colours(figure.svg(title)))
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.BytesIO()
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        # `savefig` draws twice, the first time for the layout alone, which drawing does anyway.
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _clean(root, name)
    for side in ("width", "height"):
        root.attrib.pop(side, None)
    root.set("role", "img")
    root.set("aria-label", title)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _clean(element: ElementTree.Element, prefix: str) -> None:
    element.tag = element.tag.rpartition("}")[2]
    element.tail = None
    if element.tag not in ("text", "tspan"):
        element.text = None
    kept = {}
    for key, value in element.attrib.items():
        name = key.rpartition("}")[2]
        if name == "href" and value.startswith("#"):
            kept[name] = f"#{prefix}-{value[1:]}"
        elif name == "href" and value.startswith("data:image/png;base64,"):
            kept[name] = value.replace("\n", "")
        elif name == "id":
            kept[name] = f"{prefix}-{value}"
        elif name in _ATTRIBUTES:
            kept[name] = _short(value, prefix)
    element.attrib.clear()
    element.attrib.update(kept)
    for child in list(element):
        if str(child.tag).rpartition("}")[2] in _TAGS:
            _clean(child, prefix)
        else:
            element.remove(child)


def _short(value: str, prefix: str) -> str:
    """Return an attribute with the page's colours and fonts, and two decimals."""
    value = _REFERENCE.sub(rf"url(#{prefix}-\1)", _DECIMALS.sub(r"\1", value))
    value = _FONT.sub(lambda m: f"font-size: {m[2]}px" + _weight(m[1]), value)
    return " ".join(_in_colours(value).split())


def _in_colours(text: str) -> str:
    for colour, variable in _COLOURS.items():
        text = text.replace(colour, variable)
    return text


def _weight(words: str) -> str:
    return "; font-weight: bold" if "bold" in words else ""


def csv_address(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table as the address of a CSV file that is part of the page."""
    import csv

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return "data:text/csv;charset=utf-8," + quote(out.getvalue(), safe=",.;:()+-_")


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    # A name, a number, or "nan": never what a spreadsheet would compute.
    if isinstance(value, str):
        return "'" + value if value[:1] in ("=", "+", "-", "@", "\t") else value
    return f"{value:.6g}" if isinstance(value, float) else value
