"""Links from the report to files beside it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

_PICTURES = (
    ("Slices", "previews", "slice_*.png"),
    ("Brain", "previews", "[!s]*.png"),
    ("Corrected tiles", "aips", "*.png"),
    ("Diagnostics", "diagnostics", "*.png"),
)
_TABLES = ("slice_config.csv", "shifts_xy.csv", "shifts_xy_clean.csv", "z_matches.csv")


def picture_links(folder: Path) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return groups of links, (name, address relative to the folder) each; no empty group."""
    groups = [
        (title, _links(folder, sorted((folder / place).glob(pattern))))
        for title, place, pattern in _PICTURES
    ]
    tables = [folder / name for name in _TABLES]
    groups.append(("Tables", _links(folder, [path for path in tables if path.exists()])))
    return [(title, links) for title, links in groups if links]


def atlas_links(folder: Path) -> list[tuple[str, str]]:
    """Return links to the transform and the volume in the atlas' frame."""
    return _links(
        folder, [*sorted(folder.glob("*_ras*.tfm")), *sorted(folder.glob("*_ras.ome.zarr"))]
    )


def _links(folder: Path, paths: Iterable[Path]) -> list[tuple[str, str]]:
    return [(path.name, quote(path.relative_to(folder).as_posix())) for path in paths]
