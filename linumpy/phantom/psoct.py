"""Write the phantom as a Thorlabs PS-OCT would: a folder of ``.oct`` files a slice.

Amplitudes are shared between two cameras, ``A·cos η`` and ``A·sin η``, with η of its own at every
angle and a random phase that both cameras see. So each camera's magnitude is known.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from linumpy.core.device import to_host
from linumpy.core.errors import InputError
from linumpy.io.psoct import HEADER, MEMBERS
from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.mosaic.psoct_options import STAGE_TO_ARRAY
from linumpy.mosaic.raw_tiles import open_raw_tiles
from linumpy.store.atomic import atomic_path

RETARDATION_DEG = 40.0
"""How far the second camera's phase is behind."""


def mixing_deg(angle_index: int, n_angles: int) -> float:
    """Return η of an angle: evenly spread between 0 and 90 degrees."""
    return 90 * (angle_index + 1) / (n_angles + 1)


def write_oct(
    path: Path | str,
    cameras: Sequence[np.ndarray],
    range_mm: tuple[float, float, float],
    *,
    n_averages: int = 1,
    compress: bool = False,
) -> None:
    """Write one ``.oct`` file.

    Parameters
    ----------
    cameras
        Complex samples (z, x, y) of each.
    range_mm
        Field of view along x and y, and depth.
    n_averages
        Parts that every B-scan is stored in; divides the samples along y.
    compress
        Whether members are deflated instead of stored.

    Raises
    ------
    InputError
        When B-scans cannot be cut into so many parts.
    """
    nz, nx, ny = cameras[0].shape
    if ny % n_averages:
        raise InputError(f"{path}: {ny} A-lines a B-scan cannot be stored in {n_averages} parts")
    size = (nx * n_averages, ny // n_averages, nz)
    how = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr(HEADER, _header(len(cameras), size, range_mm, n_averages))
        for name, volume in zip(MEMBERS.values(), cameras, strict=False):
            # B-scans are recorded backwards.
            bscans = volume.transpose(1, 2, 0)[:, ::-1]
            archive.writestr(name, np.ascontiguousarray(bscans, "<c8").tobytes())


def _header(
    n_cameras: int,
    size: tuple[int, int, int],
    range_mm: tuple[float, float, float],
    n_averages: int,
) -> str:
    sizes = " ".join(f'Size{axis}="{n}"' for axis, n in zip("XYZ", size, strict=True))
    ranges = " ".join(f'Range{axis}="{r!r}"' for axis, r in zip("XYZ", range_mm, strict=True))
    files = "".join(
        f'<DataFile Type="Complex" {sizes} {ranges}>{name.replace("/", chr(92))}</DataFile>'
        for name in list(MEMBERS.values())[:n_cameras]
    )
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<Ocity>'
        f"<Acquisition><IntensityAveraging><AScans>{n_averages}</AScans></IntensityAveraging>"
        f"</Acquisition><DataFiles>{files}</DataFiles></Ocity>\n"
    )


def export_psoct(
    raw: Path | str,
    slice_id: int,
    output: Path | str,
    *,
    seed: int = 0,
    n_angles: int = 1,
    n_averages: int = 1,
    padding_px: tuple[int, int] = (0, 0),
    overwrite: bool = False,
) -> Path:
    """Write one slice of a raw acquisition as a folder of ``.oct`` files with a ``.scan`` file.

    Parameters
    ----------
    raw
        Folder of the raw acquisition; fly-back is cut out.
    output
        Folder to make.
    seed
        Of the phases.
    n_angles
        Files a tile.
    n_averages
        Parts that every B-scan is stored in.
    padding_px
        Empty samples above and below.

    Returns
    -------
    The output folder.
    """
    tiles = open_raw_tiles(raw, slice_id)
    info = tiles.info
    nz = info.tile_shape_px[0] + sum(padding_px)
    range_mm = (
        info.tile_fov_um[0] / 1e3,
        info.tile_fov_um[1] / 1e3,
        nz * info.voxel_um[0] / 1e3,
    )
    corner = {(t.ix, t.iy): c for t, c in zip(info.tiles, info.corner_um(), strict=True)}
    lines = ["[Scan]", "Positions"]
    with atomic_path(output, overwrite=overwrite, directory=True) as folder:
        folder.mkdir(exist_ok=True)
        for number, key in enumerate(tiles.keys()):
            amplitude = tiles.prepare(key, tiles.read(key)).data
            padded = np.pad(to_host(amplitude), (padding_px, (0, 0), (0, 0)))
            for angle in range(n_angles):
                rng = np.random.default_rng([seed, *key, angle])
                phase = rng.uniform(0, 2 * np.pi, padded.shape)
                mixing = np.radians(mixing_deg(angle, n_angles))
                cameras = [
                    (share * padded * np.exp(1j * (phase - behind))).astype(np.complex64)
                    for share, behind in (
                        (np.cos(mixing), 0.0),
                        (np.sin(mixing), np.radians(RETARDATION_DEG)),
                    )
                ]
                name = f"tile_{number * n_angles + angle}.oct"
                write_oct(folder / name, cameras, range_mm, n_averages=n_averages)
            centre = corner[key] + np.asarray(info.tile_fov_um) / 2
            stage = [0.0, 0.0]
            for (axis, sign), um in zip(parse_stage_to_array(STAGE_TO_ARRAY), centre, strict=True):
                stage[axis] = sign * float(um) / 1e3
            lines.append(f"{stage[0]!r},{stage[1]!r}")
        (folder / "positions.scan").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Path(output)
