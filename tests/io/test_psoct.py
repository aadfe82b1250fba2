"""Thorlabs' ``.oct`` files: what is in them comes out, and harmful ones are refused in a line."""

import struct
import zipfile

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.io.psoct import read_oct, read_oct_header, read_scan_positions
from linumpy.phantom.psoct import write_oct

RANGE_MM = (0.6, 0.4, 0.05)
HEADER = (
    '<?xml version="1.0"?><Ocity><Acquisition><AScans>{averages}</AScans></Acquisition><DataFiles>'
    '<DataFile Type="Complex" SizeX="{x}" SizeY="{y}" SizeZ="{z}" RangeX="0.6" RangeY="0.4" '
    'RangeZ="0.05">data\\Complex.data</DataFile></DataFiles></Ocity>'
)
DATA = "data/Complex.data"


def samples(rng, shape):
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)


def make(path, members, how=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def header_text(x=6, y=4, z=5, averages=1):
    return HEADER.format(x=x, y=y, z=z, averages=averages)


def refused(path, match):
    """The error is one line that names the file."""
    with pytest.raises(InputError, match=match) as error:
        header = read_oct_header(path)
        read_oct(header, 1, slice(0, header.size[2]))
    text = str(error.value)
    assert "\n" not in text and str(path) in text


@pytest.mark.parametrize("averages", [1, 3])
def test_stored_samples_by_their_place(tmp_path, rng, averages):
    """Against the layout spelt out, sample by sample; not against the writer."""
    stored = samples(rng, (7, 4, 5))
    text = header_text(7, 4, 5, averages)
    path = make(tmp_path / "a.oct", [("Header.xml", text), (DATA, stored.tobytes())])
    header = read_oct_header(path)
    n_bscans, n_alines = 7 // averages, 4 * averages
    assert header.shape_px == (5, n_bscans, n_alines)
    found = read_oct(header, 1, slice(1, 4), return_complex=True)
    assert found.dtype == np.complex64 and found.shape == (3, n_bscans, n_alines)
    for z in range(3):
        for b in range(n_bscans):
            for a in range(n_alines):
                part, y = divmod(n_alines - 1 - a, 4)
                assert found[z, b, a] == stored[b * averages + part, y, z + 1]
    magnitude = read_oct(header, 1, slice(1, 4))
    assert magnitude.dtype == np.float32
    np.testing.assert_allclose(magnitude, np.abs(found), rtol=1e-6)


def test_voxels_are_range_over_size(tmp_path, rng):
    cameras = [samples(rng, (5, 6, 4))]
    write_oct(tmp_path / "a.oct", cameras, RANGE_MM)
    assert read_oct_header(tmp_path / "a.oct").voxel_um == pytest.approx((10, 100, 100))
    # The same field of view, stored in halves of B-scans.
    write_oct(tmp_path / "b.oct", cameras, RANGE_MM, n_averages=2)
    header = read_oct_header(tmp_path / "b.oct")
    assert header.size == (12, 2, 5)
    assert header.voxel_um == pytest.approx((10, 100, 100))
    # Seven planes in pairs: the last is left out, the others keep their distance.
    text = header_text(7, 4, 5, 2)
    data = samples(rng, (7, 4, 5)).tobytes()
    path = make(tmp_path / "c.oct", [("Header.xml", text), (DATA, data)])
    header = read_oct_header(path)
    assert header.shape_px == (5, 3, 8)
    assert header.voxel_um == pytest.approx((10, 2 * 600 / 7, 50))


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("averages", [1, 2, 4])
def test_both_cameras_come_back(tmp_path, rng, averages, compress):
    cameras = [samples(rng, (9, 3, 8)) for _ in range(2)]
    path = tmp_path / "a.oct"
    write_oct(path, cameras, RANGE_MM, n_averages=averages, compress=compress)
    header = read_oct_header(path)
    assert header.polarizations == (1, 2)
    for number, camera in enumerate(cameras, 1):
        found = read_oct(header, number, slice(0, 9), return_complex=True)
        np.testing.assert_array_equal(found, camera)


def test_archives_beyond_four_gigabytes_are_read(tmp_path, rng):
    """Their sizes stand in an extra field (zip64); here of a small member."""
    path = tmp_path / "a.oct"
    stored = samples(rng, (6, 4, 5))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("Header.xml", header_text())
        with archive.open(DATA, "w", force_zip64=True) as file:
            file.write(stored.tobytes())
    found = read_oct(read_oct_header(path), 1, slice(0, 5), return_complex=True)
    np.testing.assert_array_equal(found[0, 0, ::-1], stored[0, :, 0])


def test_what_is_no_archive(tmp_path):
    """Seen to fail without the error of `psoct._entered`."""
    refused(tmp_path / "none.oct", "no such file")
    refused(tmp_path, "cannot be read")
    path = tmp_path / "a.oct"
    for content in (b"", b"Header", b"PK\x05\x06" + b"\xff" * 18, b"PK\x03\x04" + bytes(200)):
        path.write_bytes(content)
        refused(path, "not an .oct file")


def test_missing_and_doubled_members(tmp_path, rng):
    """Seen to fail without the error of `psoct._entry`."""
    data = samples(rng, (6, 4, 5)).tobytes()
    path = make(tmp_path / "a.oct", [("other.xml", "x")])
    refused(path, "0 members Header.xml, expected one; it holds other.xml")
    make(path, [("Header.xml", header_text())])
    refused(path, "0 members data/Complex.data")
    with pytest.warns(UserWarning, match="Duplicate"):
        make(path, [("Header.xml", header_text()), (DATA, data), (DATA, data)])
    refused(path, "2 members data/Complex.data")
    make(path, [("Header.xml", header_text()), (DATA, data)], zipfile.ZIP_BZIP2)
    refused(path, "Header.xml is compressed, expected it stored or deflated")


@pytest.mark.parametrize("size", [0, 8 * 119, 8 * 121, 4 * 120])
def test_sizes_that_do_not_match(tmp_path, size):
    """Seen to fail without the error of `psoct._data_entry`."""
    path = make(tmp_path / "a.oct", [("Header.xml", header_text()), (DATA, bytes(size))])
    refused(path, f"data/Complex.data of {size} bytes, expected 960 for 6 x 4 x 5 complex")


def test_the_second_camera_is_checked_too(tmp_path, rng):
    data = samples(rng, (6, 4, 5)).tobytes()
    members = [("Header.xml", header_text()), (DATA, data), ("data/Complex_Cam1.data", data[:-8])]
    refused(make(tmp_path / "a.oct", members), "Complex_Cam1.data of 952 bytes, expected 960")


HARMFUL = (
    '<?xml version="1.0"?><!DOCTYPE Ocity [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>'
    "<Ocity>&b;</Ocity>"
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    "text",
    [
        HARMFUL,
        '<?xml version="1.0"?><!DOCTYPE Ocity SYSTEM "file:///etc/passwd"><Ocity/>',
        '<?xml version="1.0"?><!DOCTYPE Ocity><Ocity/>',
    ],
)
def test_document_types_and_entities(tmp_path, text, encoding):
    """Seen to fail without the error of `psoct.refuse`."""
    path = make(tmp_path / "a.oct", [("Header.xml", text.encode(encoding))])
    refused(path, "Header.xml declares a document type or entities")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("<Ocity>", "Header.xml is not XML"),
        ("", "Header.xml is not XML"),
        ("<Ocity/>", r"Header.xml has no DataFile data\\Complex.data"),
        (header_text(x=0), "SizeX of data/Complex.data is '0', expected a whole number above 0"),
        (header_text(y=-4), "SizeY of data/Complex.data is '-4'"),
        (header_text(z="5.0"), "SizeZ of data/Complex.data is '5.0'"),
        (header_text(x=10**12), "SizeX"),
        (header_text().replace('SizeX="6"', ""), "SizeX of data/Complex.data is None"),
        (header_text().replace('RangeZ="0.05"', 'RangeZ="nan"'), "RangeZ .* expected mm above 0"),
        (header_text(averages=0), "AScans is '0'"),
        (header_text(averages="two"), "AScans is 'two'"),
        (header_text(averages=7), "AScans is 7, expected at most SizeX = 6"),
    ],
)
def test_contradicting_headers_are_rejected(tmp_path, text, match):
    """Seen to fail without the errors of `psoct._whole` and `psoct._parse`."""
    path = make(tmp_path / "a.oct", [("Header.xml", text), (DATA, bytes(960))])
    refused(path, match)


def test_bombs(tmp_path):
    """32 MB of zeros in 32 kB.

    Seen to fail without the errors of `untrusted.check_expansion` and `psoct.read_oct_header`.
    """
    text = header_text(200, 200, 100)
    members = [("Header.xml", text), (DATA, bytes(32_000_000))]
    path = make(tmp_path / "a.oct", members, zipfile.ZIP_DEFLATED)
    refused(path, "data/Complex.data unpacks to 32000000 bytes from .* at most 100 times")
    make(path, [("Header.xml", " " * (1 << 25))], zipfile.ZIP_DEFLATED)
    refused(path, "Header.xml of 33554432 bytes, expected at most")


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damage(tmp_path, rng, how):
    """Seen to fail without the errors of `psoct._entered` and `psoct._member`."""
    data = samples(rng, (6, 4, 5)).tobytes()
    path = make(tmp_path / "a.oct", [("Header.xml", header_text()), (DATA, data)], how)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(DATA)
    begin = entry.header_offset + 30 + len(DATA)
    spoilt = bytearray(whole)
    spoilt[begin + entry.compress_size // 2] ^= 0x10
    path.write_bytes(spoilt)
    refused(path, "data/Complex.data cannot be read")
    path.write_bytes(whole[:-30])
    refused(path, "not an .oct file")
    # The directory promises more than there is.
    longer = bytearray(whole)
    where = whole.rindex(b"PK\x01\x02")
    struct.pack_into("<I", longer, where + 20, entry.compress_size + 400)
    path.write_bytes(longer)
    refused(path, "not an .oct file, .*members of .* bytes in a file of")


def test_damage_in_what_is_left_out_counts_too(tmp_path, rng):
    # Larger than what is read ahead.
    data = bytearray(samples(rng, (7, 40, 50)).tobytes())
    members = [("Header.xml", header_text(7, 40, 50, 2)), (DATA, bytes(data))]
    path = make(tmp_path / "a.oct", members)
    whole = bytearray(path.read_bytes())
    whole[whole.index(data) + len(data) - 3] ^= 1
    path.write_bytes(whole)
    refused(path, "data/Complex.data cannot be read .*CRC")


def test_encrypted_members(tmp_path, rng):
    """Seen to fail without the error of `psoct._member`."""
    data = samples(rng, (6, 4, 5)).tobytes()
    path = make(tmp_path / "a.oct", [("Header.xml", header_text()), (DATA, data)])
    content = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.rindex(mark) + at] |= 1
    path.write_bytes(content)
    refused(path, "data/Complex.data cannot be read .*encrypted")


def test_any_flipped_byte_is_rejected_in_a_line_or_harmless(tmp_path, rng):
    stored = samples(rng, (6, 4, 5))
    path = make(tmp_path / "a.oct", [("Header.xml", header_text()), (DATA, stored.tobytes())])
    whole = path.read_bytes()
    for place in rng.choice(len(whole), 400, replace=False):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << rng.integers(8)
        path.write_bytes(spoilt)
        try:
            header = read_oct_header(path)
            read_oct(header, 1, slice(0, min(5, header.size[2])))
        except InputError as error:
            assert str(path) in str(error)


def test_positions(tmp_path):
    path = tmp_path / "a.scan"
    path.write_text("[Scan]\nstep=1\nPositions:\n1.5,-2\n\n 0.25 , 3e-1\n")
    np.testing.assert_array_equal(read_scan_positions(path), [[1.5, -2], [0.25, 0.3]])
    for text, match in (
        ("1,2\n", "no line 'Positions'"),
        ("Positions\n\n", "no position below"),
        ("Positions\n1,2\n3;4\n", "line 3: '3;4', expected x,y in mm"),
        ("Positions\n1,2,3\n", "line 2"),
        ("Positions\n1,nan\n", "line 2"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=match):
            read_scan_positions(path)
    path.write_bytes(b"Positions\n\xff\xfe1,2")
    with pytest.raises(InputError, match="cannot be read as text"):
        read_scan_positions(path)
