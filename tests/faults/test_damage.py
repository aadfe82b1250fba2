"""Damaged OME-Zarr: the step that reads a damaged file fails and names it."""

import json
import random
import shutil
import struct
from contextlib import suppress

import google_crc32c
import numpy as np
import pytest
import zarr

from linumpy.core.errors import InputError
from linumpy.io.convert_omezarr import convert_omezarr, extract_pyramid_levels
from linumpy.io.omezarr import ImageSpec, create_image, open_image
from linumpy.io.zarr_io import read_zarr, zarr_context
from linumpy.store.digests import file_digest, shard_layout
from linumpy.store.manifest import (
    adopt,
    check_chunk_file,
    check_files,
    read_manifest,
    write_manifest,
)
from linumpy.store.verify import find_stores, verify

from .stores import (
    DAMAGES,
    SEEN_IN_SIZES,
    SETUPS,
    append,
    delete,
    empty,
    flip_bit,
    make_store,
    noise,
    swap,
    truncate,
    zero,
)


def name(value):
    return getattr(value, "__name__", str(value))


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Each set-up once; tests damage copies."""
    folder = tmp_path_factory.mktemp("stores")
    return {setup: (folder / setup, make_store(folder / setup, setup)) for setup in SETUPS}


@pytest.fixture
def copy(stores, tmp_path):
    def make(setup):
        source, files = stores[setup]
        path = tmp_path / "a.ome.zarr"
        shutil.copytree(source, path)
        return path, [path / file.relative_to(source) for file in files]

    return make


def forget_manifest(path):
    for document in (path / "zarr.json", path / ".zattrs"):
        if document.exists():
            text = json.loads(document.read_text())
            del text.get("attributes", text)["linumpy"]["manifest"]
            document.write_text(json.dumps(text))


@pytest.mark.parametrize("setup", SETUPS)
def test_what_is_whole_is_read_and_verified(copy, setup):
    path, _ = copy(setup)
    assert np.array_equal(open_image(path).array[...], noise())
    assert verify(path) == verify(path, deep=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES, ids=name)
@pytest.mark.parametrize("setup", SETUPS)
def test_no_damage_passes(copy, setup, damage):
    """Seen to fail without `check_chunk_file` in the pipeline (20 of 49 pass unseen).

    With a digest of all bytes, swapped chunks that end in their own crc32c were seen to pass.

    And without `check_files` in `open_image`, or without its look at sizes, or at missing files.
    """
    path, (file, other) = copy(setup)
    array = open_image(path).array
    damage(file, other)
    with pytest.raises(InputError, match=f"{file}: "):
        # An array that is open already: found when it is read.
        array[...]
    if damage in SEEN_IN_SIZES:
        with pytest.raises(InputError, match=f"{file}: "):
            open_image(path)
        assert [line.startswith(f"{file}: ") for line in verify(path)] == [True]
    else:
        assert verify(path) == []
        with pytest.raises(InputError, match=f"{file}: "):
            open_image(path).array[:, :, 8:]
    lines = verify(path, deep=True)
    assert len(lines) == (2 if damage is swap else 1)
    assert any(line.startswith(f"{file}: ") for line in lines)
    for convert in (
        lambda out: convert_omezarr(path, out, "0.4"),
        lambda out: extract_pyramid_levels(path, out, [0]),
    ):
        with pytest.raises(InputError, match=f"{file}: "):
            convert(path.parent / "out.ome.zarr")
    assert [p.name for p in path.parent.iterdir()] == ["a.ome.zarr"]


# The table of docs/formats.md.
PASSES = {
    "ours": (delete, swap),
    "raw": (delete, swap, flip_bit, zero),
    "raw crc32c": (delete, swap),
    "zstd": (delete, swap, flip_bit),
    "blosc": (delete, swap, flip_bit),
    "gzip": (delete, swap),
    "lz4": (delete, swap, flip_bit),
    "v2 zstd": (delete, swap, flip_bit),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=name)
@pytest.mark.parametrize("setup", SETUPS)
def test_without_a_manifest_codecs_find_what_they_can(copy, setup, damage, caplog):
    """Our chunks carry crc32c: only a chunk that is gone, or another's, needs the manifest.

    Seen to fail without the check of an index's length.
    """
    path, (file, other) = copy(setup)
    forget_manifest(path)
    damage(file, other)
    with caplog.at_level("INFO", "linumpy"):
        array = open_image(path).array
        open_image(path)
    said = [r.getMessage() for r in caplog.records if "has no manifest" in r.getMessage()]
    assert len(said) == 1 and str(path) in said[0]
    assert verify(path) == [f"{path}: has no manifest"]
    if damage in PASSES[setup]:
        found, true = array[...], noise()
        assert not np.array_equal(found, true)
        if damage is swap:
            assert np.array_equal(found[:, :8, 8:], true[:, 8:, :8])
        if damage is delete:
            assert not found[:, :8, 8:].any()
        return
    with pytest.raises(InputError, match=f"{file}: "):
        array[...]
    if setup == "ours":
        assert any(line.startswith(f"{file}: ") for line in verify(path, deep=True))


def swap_inside(file):
    """Swap two inner chunks of a shard by its index, whose checksum is made right again."""
    data = bytearray(file.read_bytes())
    index = data[-(16 * 8 + 4) : -4]
    index[0:16], index[32:48] = index[32:48], index[0:16]
    data[-(16 * 8 + 4) : -4] = index
    data[-4:] = struct.pack("<I", google_crc32c.value(bytes(index)))
    file.write_bytes(data)


def drop_inside(file):
    """Make an inner chunk a missing one, which is fill value."""
    data = bytearray(file.read_bytes())
    index = bytearray(data[-(16 * 8 + 4) : -4])
    index[16:32] = b"\xff" * 16
    data[-(16 * 8 + 4) :] = index + struct.pack("<I", google_crc32c.value(bytes(index)))
    file.write_bytes(data)


@pytest.mark.parametrize("change", [swap_inside, drop_inside], ids=name)
def test_a_shard_rearranged_with_right_checksums_is_altered(copy, change):
    """Seen to fail with a digest of the inner checksums in the order of the file."""
    path, (file, _) = copy("ours")
    size = file.stat().st_size
    change(file)
    assert file.stat().st_size == size
    with pytest.raises(InputError, match=f"{file}: altered"):
        open_image(path).array[0, 0, 9]
    assert [line.startswith(f"{file}: altered") for line in verify(path, deep=True)] == [True]
    forget_manifest(path)
    assert open_image(path).array[0, 0, 9] != noise()[0, 0, 9] or change is drop_inside


def test_a_payload_is_compared_by_a_deep_look_though_the_digest_leaves_it_out(copy):
    """Seen to fail without `check_inner_checksums` in the deep look."""
    path, (file, _) = copy("ours")
    before = file_digest(file, read_manifest(path).layout("0/c/0/0/1"))
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    assert file_digest(file, read_manifest(path).layout("0/c/0/0/1")) == before
    assert verify(path, deep=True) == [f"{file}: inner chunk 0: wrong checksum (crc32c)"]
    with pytest.raises(InputError, match=f"{file}.*crc32c"):
        open_image(path).array[0, 0, 9]


@pytest.mark.parametrize("setup", ["ours", "raw", "v2 zstd"])
def test_metadata_of_a_level_altered(copy, setup):
    """Seen to fail without checksums of metadata at opening."""
    path, _ = copy(setup)
    file = path / ("0/.zarray" if setup.startswith("v2") else "0/zarr.json")
    text = file.read_text()
    file.write_text(text.replace("16", "24"))
    assert file.stat().st_size == len(text)
    with pytest.raises(InputError, match=f"{file}: altered"):
        open_image(path)
    assert [line.startswith(f"{file}: altered") for line in verify(path)] == [True]


def test_metadata_altered_after_it_was_read_lends_no_layout(copy):
    """Seen to fail with the layout of a shard taken from metadata that nobody compared."""
    path, _ = copy("ours")
    array = open_image(path).array
    metadata = path / "0/zarr.json"
    metadata.write_text(metadata.read_text().replace("16", "24"))
    with pytest.raises(InputError, match=f"{metadata}: altered"):
        array[...]


@pytest.mark.parametrize("setup", ["ours", "v2 zstd"])
def test_no_flipped_bit_of_the_root_document_passes(copy, setup):
    """Whatever bit: an error that names the document, or one that says the same.

    Seen to fail without the root's digest, and without the look for pieces of a manifest.
    """
    path, _ = copy(setup)
    document = path / (".zattrs" if setup.startswith("v2") else "zarr.json")
    whole = document.read_bytes()
    meaning = json.loads(whole)
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    manifest = whole.index(b'"manifest"')
    places = [*range(manifest, manifest + 60), *(dice.randrange(len(whole)) for _ in range(200))]
    for place in places:
        data = bytearray(whole)
        data[place] ^= 1 << dice.randrange(8)
        document.write_bytes(data)
        says_the_same = False
        with suppress(ValueError):
            says_the_same = json.loads(data) == meaning
        if not says_the_same:
            with pytest.raises(InputError, match=f"{document}: "):
                check_files(path)
                pytest.fail(
                    f"seed {seed}: byte {place} of {bytes(data)[place - 20 : place + 20]!r}"
                )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(version=2), "manifest of version 2; expected 1"),
        (lambda m: m.pop("digest"), "lacks or misstates 'digest'"),
        (lambda m: m.update(files=[]), "lacks or misstates"),
        (lambda m: m["files"].update({"0/zarr.json": [5]}), "lacks or misstates"),
        (
            lambda m: m["files"].update({"../../x": [5, "00000000"]}),
            "has an invalid entry for '../../x'",
        ),
        (lambda m: m["files"].update({"/etc/passwd": [5, "00000000"]}), "has an invalid entry for"),
        (lambda m: m["files"].update({"0/c/0/0/1": [-1, "00000000"]}), "has an invalid entry for"),
        (lambda m: m["files"].update({"0/c/0/0/1": [1024, "xyz"]}), "has an invalid entry for"),
        (lambda m: m["files"].popitem(), "altered: its checksum"),
        (lambda m: m["files"].update({"0/c/0/0/1": [1024, "00000000"]}), "altered: its checksum"),
        (lambda m: m.update(digest="00000000"), "altered: its checksum"),
    ],
)
def test_a_manifest_altered(copy, change, words):
    """Three of its cases were seen to fail without the comparison with `_root_digest`."""
    path, _ = copy("ours")
    document = json.loads((path / "zarr.json").read_text())
    change(document["attributes"]["linumpy"]["manifest"])
    (path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=f"zarr.json: .*{words}"):
        open_image(path)
    assert len(verify(path)) == 1


def test_a_root_document_gone_cut_or_empty(copy):
    """Seen to fail where `store_files.parse_json` lets JSON's own error pass."""
    path, _ = copy("ours")
    root = path / "zarr.json"
    whole = root.read_bytes()
    for data in (b"", whole[:-40], bytes(len(whole)), b"[1]", b'{"attributes": 7}'):
        root.write_bytes(data)
        with pytest.raises(InputError, match=f"{root}: "):
            open_image(path)
        assert [line.startswith(f"{root}: ") for line in verify(path)] == [True]
    root.unlink()
    with pytest.raises(InputError, match=f"{path}: not a Zarr group"):
        open_image(path)
    assert find_stores(path.parent) == [path]
    assert verify(path)[0].startswith(f"{path}: not a Zarr store")


@pytest.mark.parametrize(
    "surplus",
    [
        "0/c/0/0/2",
        "0/c/5/0/0",
        "1/zarr.json",
        ".zgroup",
        ".zattrs",
        "notes.txt",
        "labels/x/y/z",
        "0/c/0/0/1.0123456789abcdef0123456789abcdef.partial",
    ],
)
def test_a_surplus_file_is_an_error(copy, surplus):
    """Seen to fail with files passed over that the manifest does not list."""
    path, (file, _) = copy("ours")
    (path / surplus).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, path / surplus)
    with pytest.raises(InputError, match=f"{path / surplus}: surplus"):
        open_image(path)
    with pytest.raises(InputError, match=f"{path / surplus}: surplus"):
        convert_omezarr(path, path.parent / "out.ome.zarr", "0.4")
    assert [line.startswith(f"{path / surplus}: surplus") for line in verify(path)] == [True]


def test_links(copy):
    """What is a link is not there, or surplus; but a store may be a link itself.

    Seen to fail without the refusal in `stay_inside`, and with a `walk` that follows folders.
    """
    path, (file, _) = copy("ours")
    elsewhere = path.parent / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    with pytest.raises(InputError, match=f"{file}: .*link"):
        open_image(path).array[...]
    elsewhere.unlink()
    with pytest.raises(InputError, match=f"{file}: missing"):
        open_image(path)
    file.unlink()
    folder = path / "0/c"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    with pytest.raises(InputError, match=f"{folder}: surplus"):
        open_image(path)
    # As Nextflow hands its inputs on.
    link = path.parent / "link.ome.zarr"
    folder.unlink()
    elsewhere.rename(folder)
    link.symlink_to(path)
    with pytest.raises(InputError, match=f"{link}/0/c/0/0/1: missing"):
        open_image(link)


def test_what_file_managers_leave_is_no_damage(copy):
    path, _ = copy("ours")
    for place in (".DS_Store", "0/c/._0", "0/Thumbs.db", "0/c/0/.nfs000000000001"):
        (path / place).write_bytes(b"x")
    assert verify(path, deep=True) == []
    assert np.array_equal(open_image(path).array[...], noise())


def test_a_chunk_that_changes_after_it_was_read_is_seen(copy):
    """Seen to fail with files remembered by their name alone."""
    for setup in ("ours", "raw"):
        path, (file, other) = copy(setup)
        array = open_image(path).array
        assert np.array_equal(array[...], noise())
        swap(file, other)
        with pytest.raises(InputError, match=f"{file}: altered"):
            array[...]
        shutil.rmtree(path)


def test_every_way_to_read_an_array_checks_it(copy):
    """Seen to fail without `check_chunk_file` in the pipeline."""
    path, (file, other) = copy("raw")
    swap(file, other)
    with pytest.raises(InputError, match=f"{file}: altered"):
        read_zarr(path / "0")
    with zarr_context():
        arrays = zarr.open_array(path / "0", mode="r"), zarr.open_group(path, mode="r")["0"]
    for array in arrays:
        with pytest.raises(InputError, match=f"{file}: altered"):
            array[:, 0:2, 8:]
    with pytest.raises(InputError, match=f"{file}: altered"):
        check_chunk_file(file)
    assert check_chunk_file(path / "0/c/0/0/0")
    forget_manifest(path)
    assert not check_chunk_file(file)


def test_chunks_of_fill_value_are_not_missed(tmp_path):
    path = tmp_path / "a.ome.zarr"
    spec = ImageSpec((8, 8, 8), (1.0,) * 3, (0.0,) * 3, (4, 4, 4), (4, 4, 4))
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        image.array[:4, :4, :4] = 1
    files = read_manifest(path).files
    assert [n for n in files if "/c/" in n] == ["0/c/0/0/0"]
    assert open_image(path).array[...].sum() == 64
    assert verify(path, deep=True) == []


def test_a_digest_is_that_of_its_definition(copy):
    """Against a computation of its own, from the shard's specification."""
    path, (file, _) = copy("ours")
    data = file.read_bytes()
    index = data[-(16 * 8 + 4) :]
    parts = np.frombuffer(index[:-4], "<u8").reshape(8, 2).tolist()
    inner = b"".join(data[a + n - 4 : a + n] for a, n in parts)
    for a, n in parts:
        crc = google_crc32c.value(data[a : a + n - 4])
        assert struct.pack("<I", crc) == data[a + n - 4 : a + n]
    expected = f"{google_crc32c.value(inner + index):08x}"
    assert read_manifest(path).files["0/c/0/0/1"] == (len(data), expected)
    metadata = (path / "0/zarr.json").read_bytes()
    assert read_manifest(path).files["0/zarr.json"] == (
        len(metadata),
        f"{google_crc32c.value(metadata):08x}",
    )
    document = json.loads((path / "zarr.json").read_text())
    digest = document["attributes"]["linumpy"]["manifest"].pop("digest")
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert digest == read_manifest(path).digest == f"{google_crc32c.value(text.encode()):08x}"


@pytest.mark.parametrize("index_location", ["start", "end"])
@pytest.mark.parametrize("index_codecs", [["bytes"], ["bytes", "crc32c"]])
def test_shards_of_any_layout(tmp_path, index_location, index_codecs):
    """Payload is left out of the digest, whatever the layout, and comes into the deep look."""
    from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

    codecs = {"bytes": BytesCodec(), "crc32c": Crc32cCodec()}
    array = zarr.create_array(
        tmp_path / "a.zarr",
        shape=(8, 8),
        chunks=(8, 8),
        dtype="u1",
        compressors=[],
        serializer=ShardingCodec(
            chunk_shape=(4, 4),
            codecs=[BytesCodec(), Crc32cCodec()],
            index_codecs=[codecs[name] for name in index_codecs],
            index_location=index_location,
        ),
    )
    array[...] = np.arange(64).reshape(8, 8)
    write_manifest(tmp_path / "a.zarr")
    assert verify(tmp_path / "a.zarr", deep=True) == []
    layout = shard_layout(json.loads((tmp_path / "a.zarr/zarr.json").read_text()))
    assert (layout.n_chunks, layout.at_end) == (4, index_location == "end")
    file = tmp_path / "a.zarr/c/0/0"
    data = bytearray(file.read_bytes())
    data[layout.nbytes if index_location == "start" else 0] ^= 1
    file.write_bytes(data)
    assert len(verify(tmp_path / "a.zarr", deep=True)) == 1
    assert read_manifest(tmp_path / "a.zarr").files["c/0/0"] == file_digest(file, layout)


def test_a_change_that_was_meant_is_adopted(copy):
    path, (file, other) = copy("raw")
    swap(file, other)
    group = zarr.open_group(path, mode="r+")
    group.attrs["note"] = "swapped"
    adopt(path)
    assert verify(path, deep=True) == []
    found = open_image(path)
    assert np.array_equal(found.array[:, :8, 8:], noise()[:, 8:, :8])
    assert found.attributes == {}


def test_what_broke_off_is_not_adopted(copy):
    """Neither a file that Zarr was about to rename, nor a shard that is damaged.

    Seen to fail without the look for leftovers in `list_files`.
    """
    path, (file, _) = copy("ours")
    rest = path / "0/c/0/0/1.0123456789abcdef0123456789abcdef.partial"
    rest.write_bytes(b"")
    with pytest.raises(InputError, match=f"{rest}: left over"):
        adopt(path)
    rest.unlink()
    for damage in (empty, truncate, zero, append):
        whole = file.read_bytes()
        damage(file, None)
        with pytest.raises(InputError, match=f"{file}: "):
            adopt(path)
        file.write_bytes(whole)
    adopt(path)
    flip_bit(file, None)
    assert verify(path, deep=True) != []
