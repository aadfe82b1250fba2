"""Draw preview images of a brain beside an atlas, in three planes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from linumpy.brain.atlas.volume import Volume, affine_sample
from linumpy.core.device import to_host
from linumpy.io.previews import figure_png
from linumpy.store.atomic import atomic_path

_INK = "#1b1f24"
_AXES = ("superior", "anterior", "right")
_ENDS = (("I", "S"), ("P", "A"), ("L", "R"))
_PLANES = ((1, 2), (0, 2), (0, 1))


def align_preview(
    brain: Volume,
    atlas: Volume,
    matrix: np.ndarray,
    path: Path | str,
    *,
    title: str,
    overwrite: bool = False,
) -> None:
    """Draw atlas, brain and both together, in three planes through the middle of the brain.

    Parameters
    ----------
    brain, atlas
        Made by `contrast`, NumPy.
    matrix
        4 × 4, from brain to atlas, um.
    path
        The PNG.
    title
        One line above the images.
    """
    from matplotlib.figure import Figure

    sampled = affine_sample(brain, np.linalg.inv(matrix), atlas.index_to_um, atlas.data.shape)
    seen, valid = map(to_host, sampled)
    middle = _middle(seen, valid)
    side = atlas.voxel_um
    figure = Figure(figsize=(9, 9.4), dpi=110, facecolor="white")
    figure.suptitle(title, fontsize=10, color=_INK)
    for column, across in enumerate(_PLANES):
        normal = 3 - sum(across)
        cut = tuple(middle[k] if k == normal else slice(None) for k in range(3))
        here, there = atlas.data[cut], seen[cut]
        both = np.stack([here, there, here], axis=-1)
        position_mm = (atlas.index_to_um @ [*middle, 1])[normal] / 1000
        for row, (picture, name) in enumerate(
            ((here, "atlas"), (there, "brain"), (both, "atlas magenta, brain green"))
        ):
            axes = figure.add_subplot(3, 3, 1 + 3 * row + column)
            axes.imshow(
                np.clip(picture, 0, 1),
                cmap="gray",
                vmin=0,
                vmax=1,
                origin="lower",
                aspect=side[across[0]] / side[across[1]],
                interpolation="nearest",
            )
            axes.set_title(
                f"{name}, {_AXES[normal]} {position_mm:.2f} mm" if row == 0 else name,
                fontsize=8, color=_INK, loc="left",
            )  # fmt: skip
            _letters(axes, across)
    figure.tight_layout()
    with atomic_path(path, overwrite=overwrite) as partial:
        partial.write_bytes(figure_png(figure))


def _middle(seen: np.ndarray, valid: np.ndarray) -> tuple[int, ...]:
    """Return the middle of what the brain shows, else that of the grid."""
    weight = seen * (valid > 0)
    total = float(weight.sum())
    if total <= 0:
        return tuple(n // 2 for n in seen.shape)
    found = []
    for axis, n in enumerate(seen.shape):
        others = tuple(k for k in range(3) if k != axis)
        found.append(int(round(float((weight.sum(axis=others) * np.arange(n)).sum()) / total)))
    return tuple(found)


def _letters(axes: object, across: Sequence[int]) -> None:
    """Write which way is which at the borders of an image."""
    rows, columns = (_ENDS[k] for k in across)
    places = (
        (0.5, 0.02, rows[0], "center", "bottom"),
        (0.5, 0.98, rows[1], "center", "top"),
        (0.02, 0.5, columns[0], "left", "center"),
        (0.98, 0.5, columns[1], "right", "center"),
    )
    for x, y, letter, horizontal, vertical in places:
        axes.text(  # type: ignore[attr-defined]
            x, y, letter, transform=axes.transAxes, color="#ffd24a",  # type: ignore[attr-defined]
            fontsize=9, ha=horizontal, va=vertical,
        )  # fmt: skip
    axes.set_xticks([])  # type: ignore[attr-defined]
    axes.set_yticks([])  # type: ignore[attr-defined]
