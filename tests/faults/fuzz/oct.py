"""``.oct`` files: archives as bytes, and archives made of a header and samples.

The first byte says how: 0 takes the rest as the file; otherwise it chooses compression, averages
and names, two bytes give the length of the header's XML, and the rest are samples. Behind the last
0xff 0xfe, if there is one, stand changes of the archive's bytes: two bytes where, one what.
"""

import io
import zipfile

import numpy as np

from linumpy.io.psoct import HEADER, MEMBERS, read_oct, read_oct_header
from tests.faults.fuzz.common import folder, survive

FILE = folder() / "a.oct"
SIZE = (6, 4, 5)
SAMPLES = np.arange(np.prod(SIZE), dtype="<c8").tobytes()


def archive(data: bytes) -> bytes:
    if len(data) < 3 or data[0] == 0:
        return data[1:]
    how, length, rest = data[0], int.from_bytes(data[1:3], "little"), data[3:]
    rest, _, changes = rest.rpartition(b"\xff\xfe") if b"\xff\xfe" in rest else (rest, b"", b"")
    header, samples = rest[:length], rest[length:] or SAMPLES
    room = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if how & 1 else zipfile.ZIP_STORED
    with zipfile.ZipFile(room, "w", kind) as made:
        made.writestr(HEADER, header)
        made.writestr(MEMBERS[1], samples)
        if how & 2:
            made.writestr(MEMBERS[2], samples)
        if how & 4:
            made.writestr("../" + HEADER, header)
    spoilt = bytearray(room.getvalue())
    for at in range(0, len(changes) - 2, 3):
        # Most of what counts stands at the end: the listing.
        place = len(spoilt) - 1 - int.from_bytes(changes[at : at + 2], "little") % len(spoilt)
        spoilt[place] = changes[at + 2]
    return bytes(spoilt)


def one(data: bytes) -> None:
    FILE.write_bytes(archive(data))
    header = survive(lambda: read_oct_header(FILE))
    if header is None:
        return
    assert min(header.size) > 0 and min(header.voxel_um) > 0
    nz, nx, ny = header.shape_px
    kept = slice(0, min(nz, 3))
    for camera in header.polarizations:
        found = survive(lambda camera=camera: read_oct(header, camera, kept))
        assert found is None or found.shape == (kept.stop, nx, ny)
