"""Tissue mask of a brain: compared with a known scene, and as an NGFF label image."""

import itertools
import json

import numpy as np
import pytest
import zarr
from ome_zarr_models import open_ome_zarr

from linumpy.brain import tissue_label as module
from linumpy.brain.tissue_label import write_tissue_label
from linumpy.intensity import tissue
from linumpy.io.omezarr import create_image
from linumpy.io.pyramid import Part, Pyramid, write_parts
from linumpy.io.slice_layout import volume_spec

SHAPE = (200, 280, 300)
SHARD = 256
GAP = slice(96, 112)


@pytest.fixture(scope="module")
def scene():
    """An ellipsoid in speckled agarose; a slice is missing, and a corner was never imaged."""
    rng = np.random.default_rng(5)
    z, i, j = (
        np.linspace(-1, 1, n).reshape(s)
        for n, s in zip(SHAPE, np.eye(3, dtype=int) * -2 + 1, strict=True)
    )
    tissue = (z / 0.85) ** 2 + (i / 0.8) ** 2 + (j / 0.75) ** 2 < 1
    valid = np.ones(SHAPE, np.uint8)
    valid[GAP] = 0
    valid[:, :40, :40] = 0
    grey = np.where(np.abs(j) < 0.2, 0.9, 0.3)
    data = np.where(tissue, grey, 0.008) * rng.gamma(2, 0.5, SHAPE)
    return (data * valid).astype(np.float32), valid, tissue & (valid > 0)


def write(path, data, valid, *, backwards=False):
    spec = volume_spec(SHAPE, (10.0, 10.0, 10.0), (100.0, -50.0, 0.0), {"kind": "brain"})
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        pyramid = Pyramid(image, [25.0, 50.0, 100.0], (SHARD,) * 3)
        corners = list(itertools.product(*(range(0, n, SHARD) for n in SHAPE)))
        for corner in reversed(corners) if backwards else corners:
            window = tuple(slice(a, min(a + SHARD, n)) for a, n in zip(corner, SHAPE, strict=True))
            block, mask = data[window], valid[window]
            parts = [Part(image.array, window, block), Part(image.valid, window, mask)]
            parts += pyramid.add(window, block, mask)
            write_parts(parts)
        write_tissue_label(image)
    return zarr.open_group(path / "labels" / "tissue", mode="r")


def dice(a, b):
    return 2 * (a & b).sum() / (a.sum() + b.sum())


@pytest.fixture(scope="module")
def label(scene, tmp_path_factory):
    data, valid, _ = scene
    return write(tmp_path_factory.mktemp("tissue") / "brain.ome.zarr", data, valid)


def test_the_mask_is_the_tissue_at_every_level(label, scene):
    _, _, tissue = scene
    assert dice(label["0"][:] > 0, tissue) > 0.955
    full = label["0"][:]
    for name, step in (("1", 2.5), ("2", 5), ("3", 10)):
        level = label[name][:]
        assert set(np.unique(level)) == {0, 1}
        places = [((np.arange(n) + 0.5) * step).astype(int) for n in level.shape]
        assert dice(level > 0, full[np.ix_(*places)] > 0) > 0.97
    # Neither the missing slice nor what was never imaged, to within a cell of 50 um.
    assert not full[GAP.start + 5 : GAP.stop - 5].any()
    assert not full[:, :35, :35].any()


def test_it_is_an_ngff_label_image_on_the_images_grid(label):
    path = label.store.root
    assert type(open_ome_zarr(label)).__name__ == "ImageLabel"
    parent = zarr.open_group(path.parents[1], mode="r")
    listed = json.loads((path.parent / "zarr.json").read_text())["attributes"]["ome"]
    assert listed == {"version": "0.5", "labels": ["valid", "tissue"]}
    found, expected = (g.attrs["ome"]["multiscales"][0] for g in (label, parent))
    assert found["axes"] == expected["axes"] and found["datasets"] == expected["datasets"]
    for name in ("0", "1", "2", "3"):
        assert label[name].shape == parent[name].shape and label[name].dtype == np.uint8
    (one,) = label.attrs["ome"]["image-label"]["properties"]
    measured = (label["0"][:] > 0).sum() * 1e-6
    assert one["label-value"] == 1 and one["volume_mm3"] == pytest.approx(measured, rel=0.01)


@pytest.mark.slow
def test_the_order_of_blocks_changes_no_bit(label, scene, tmp_path):
    data, valid, _ = scene
    other = write(tmp_path / "brain.ome.zarr", data, valid, backwards=True)
    for name in ("0", "1", "2", "3"):
        np.testing.assert_array_equal(label[name][:], other[name][:])


def test_memory_is_bounded_by_larger_cells(scene, tmp_path, monkeypatch):
    data, valid, tissue = scene
    sizes = []
    clean = module.clean_mask
    monkeypatch.setattr(module, "MAX_CELLS", 20_000)
    monkeypatch.setattr(module, "clean_mask", lambda t, k: sizes.append(t.size) or clean(t, k))
    other = write(tmp_path / "brain.ome.zarr", data, valid)
    # 40 x 56 x 60 voxels of 50 um, halved along each axis.
    assert sizes == [20 * 28 * 30]
    assert dice(other["0"][:] > 0, tissue) > 0.9


def test_gaps_are_closed_but_not_where_nothing_was_imaged():
    tissue, known = np.ones((4, 30, 30), bool), np.ones((4, 30, 30))
    tissue[:, 8:10] = False
    tissue[:, :, 20:22] = False
    known[:, :, 20:22] = 0
    tissue[1, 25, 4] = known[1, 25, 4] = 0
    found = module.clean_mask(tissue, known)
    np.testing.assert_array_equal(found, known > 0)


def test_a_brain_without_tissue_has_an_empty_mask(tmp_path):
    nothing = write(tmp_path / "a.ome.zarr", np.zeros(SHAPE, np.float32), np.ones(SHAPE, np.uint8))
    assert not nothing["0"][:].any()
    assert nothing.attrs["ome"]["image-label"]["properties"][0]["volume_mm3"] == 0


def test_threads_change_no_voxel(scene, monkeypatch):
    """Planes are divided among threads; objects and holes are those of the whole."""
    data, valid, _ = scene
    cells, known = data[::2, ::3, ::3], valid[::2, ::3, ::3].astype(np.float16)
    masks = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(tissue, "default_workers", lambda _, n=threads: n)
        found = tissue.trim_rim(tissue.tissue_cells(cells, known, 0.001), cells)
        # Larger than a speck, and a seventh of it is not.
        rod = np.s_[5:85, 3:5, 90:92]
        found[rod] = known[rod] > 0
        masks.append(tissue.clean_mask(found, known))
    assert 0.1 < masks[0].mean() < 0.9 and masks[0][rod].sum() == (known[rod] > 0).sum()
    np.testing.assert_array_equal(masks[1], masks[0])
    np.testing.assert_array_equal(masks[2], masks[0])
