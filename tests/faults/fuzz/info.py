"""``info.txt``: its bytes as they are."""

import math

from linumpy.io.info import read_info
from linumpy.io.raw_files import image_files
from tests.faults.fuzz.common import folder, mutate_text, survive

mutate = mutate_text
FOLDER = folder()
FILE = FOLDER / "info.txt"
(FOLDER / "image_00000.bin").write_bytes(bytes(64))


def one(data: bytes) -> None:
    FILE.write_bytes(data)
    info = survive(lambda: read_info(FILE))
    if info is None:
        return
    assert min(info.shape_px) > 0 and info.n_extra >= 0 and info.bscan_bytes > 0
    assert all(0 < side < math.inf for side in (*info.fov_um, *info.pixel_um))
    stage = (info.stage_x_mm, info.stage_y_mm, info.stage_z_mm)
    assert all(value is None or math.isfinite(value) for value in stage)
    # Sizes are compared before anything is made for the samples.
    survive(lambda: image_files(FOLDER, info))
