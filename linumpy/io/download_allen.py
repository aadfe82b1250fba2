"""Download the average template of the Allen mouse brain atlas (CCF v3), once.

The published file says nothing true of its axes: they point to posterior, inferior and right (PIR),
in micrometres, from the corner in front, above, on the left. What is written here is a NIfTI that
defines it: superior = −depth, anterior = −(way to the back), right = way to the right, so that
the atlas' own coordinates are the world's but for signs.

Q. Wang et al., Cell 181, 936 (2020).
"""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

from linumpy.core.errors import InputError, LinumpyError
from linumpy.core.log import logger
from linumpy.store.atomic import atomic_path, refuse_existing

BASE_URL = (
    "https://download.alleninstitute.org/informatics-archive/current-release/mouse_ccf/"
    "average_template/"
)
RESOLUTIONS_UM = (10, 25, 50, 100)
AXES = "PIR"

_PIECE = 2**20
_TIMEOUT_S = 60


class DownloadError(LinumpyError):
    """A file could not be fetched, or is not the one that was asked for."""


def cache_folder() -> Path:
    """Return the folder of downloaded files: in ``XDG_CACHE_HOME``, else ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "linumpy"


def download_allen(
    output: Path | str,
    resolution_um: int = 25,
    *,
    url: str | None = None,
    cache: Path | None = None,
    sha256: str = "",
    size: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the average template as NIfTI with its axes, from the cache or the network.

    Parameters
    ----------
    output
        ``.nii`` or ``.nii.gz``.
    resolution_um
        10, 25, 50 or 100.
    url
        Where the NRRD lies, for a mirror.
    cache
        Folder of downloaded files; `cache_folder` when None.
    sha256, size
        Digest and bytes that the NRRD must have; not checked when empty.
    overwrite
        Whether an existing output may be replaced.

    Returns
    -------
    The NRRD in the cache.

    Raises
    ------
    InputError
        When there is no template of that resolution, or the output's name is no NIfTI's.
    DownloadError
        When the file cannot be fetched whole, or is not the one asked for.
    """
    from linumpy.io.atlas import read_atlas, write_nifti

    output = refuse_existing(output, overwrite)
    if not output.name.endswith((".nii", ".nii.gz")):
        raise InputError(f"{output}: expected a name that ends in .nii or .nii.gz")
    if resolution_um not in RESOLUTIONS_UM:
        raise InputError(
            f"--allen_resolution {resolution_um}: expected one of "
            f"{', '.join(map(str, RESOLUTIONS_UM))}"
        )
    name = f"average_template_{resolution_um}.nrrd"
    kept = fetch(url or BASE_URL + name, (cache or cache_folder()) / name, sha256=sha256, size=size)
    atlas = read_atlas(kept, orientation=AXES, unit="micrometer")
    side = np.array(atlas.voxel_um)
    if np.abs(side / resolution_um - 1).max() > 0.01:
        raise DownloadError(f"{kept}: voxels of {side.tolist()} um, expected {resolution_um} um")
    write_nifti(output, atlas.data, atlas.index_to_um, overwrite=overwrite)
    return kept


def fetch(url: str, path: Path, *, sha256: str = "", size: int | None = None) -> Path:
    """Return a file from the cache, downloaded first if it is not there or not the right one.

    Parameters
    ----------
    url
        Where it lies.
    path
        Where it is kept.
    sha256, size
        What it must be.
    """
    if path.exists():
        wrong = _wrong(path, sha256, size)
        if wrong is None:
            return path
        logger.warning("%s: %s; it is fetched again", path, wrong)
    logger.info("fetching %s", url)
    with atomic_path(path, overwrite=True) as partial:
        try:
            with (
                urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer,  # noqa: S310
                partial.open("wb") as file,
            ):
                announced = answer.headers.get("Content-Length")
                while piece := answer.read(_PIECE):
                    file.write(piece)
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise DownloadError(
                f"{url}: cannot be fetched ({error}); fetch it by other means and give it as "
                "--atlas, with --atlas_orientation PIR and --atlas_unit micrometer"
            ) from error
        received = partial.stat().st_size
        if announced is not None and received != int(announced):
            raise DownloadError(f"{url}: {received} of {announced} bytes came; try again")
        wrong = _wrong(partial, sha256, size)
        if wrong is not None:
            raise DownloadError(f"{url}: {wrong}")
    return path


def _wrong(path: Path, sha256: str, size: int | None) -> str | None:
    """Return what is wrong with a file, None when nothing is."""
    found = path.stat().st_size
    if size is not None and found != size:
        return f"{found} bytes, expected {size}"
    if sha256:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != sha256.strip().lower():
            return f"its SHA-256 is {digest}, expected {sha256}"
    return None
