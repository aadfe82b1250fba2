"""Samples that no microscope wrote are found, and those that one did are left alone."""

import numpy as np
import pytest

from linumpy.core.device import to_host
from linumpy.io.sample_checks import check_samples
from linumpy.mosaic.slice_tiles import prepare_tile

SHAPE = (40, 30, 24)


def speckle(rng, shape=SHAPE, scale=200.0):
    """Rayleigh amplitudes that fall along depth by a factor of 50: noise at the end."""
    depth = np.exp(-4 * np.arange(shape[0]) / shape[0])[:, None, None]
    return (rng.rayleigh(scale, shape) * depth + rng.rayleigh(2.0, shape)).astype(np.float32)


def in_file_order(volume):
    return np.ascontiguousarray(volume.transpose(2, 1, 0))


def from_file_order(frames):
    return frames.transpose(2, 1, 0)


def flip(value, bit):
    return (np.float32(value).view(np.uint32) | np.uint32(1 << bit)).view(np.float32)


@pytest.mark.parametrize("bit", [27, 28, 29])
def test_a_flipped_bit_is_masked_alone(xp, rng, bit):
    """220 becomes 1.4e7, 9.4e11 or 4e21. Seen to fail without the search for spikes."""
    volume = speckle(rng)
    volume[9, 7, 5] = flip(220, bit)
    found = check_samples(xp.asarray(volume))
    assert found.flags == (("spikes:1",) if bit < 29 else ("nan:1",))
    expected = np.ones(SHAPE, bool)
    expected[9, 7, 5] = False
    np.testing.assert_array_equal(to_host(found.usable), expected)


@pytest.mark.parametrize("place", [(0, 0, 0), (39, 29, 23), (0, 15, 23)])
def test_spikes_at_the_border_are_found(xp, rng, place):
    volume = speckle(rng)
    volume[place] = 4e6
    assert check_samples(xp.asarray(volume)).flags == ("spikes:1",)


def test_a_reflection_is_no_spike(xp, rng):
    """80 dB above the median, as wide as Hann's window and a spot of two samples make it."""
    volume = speckle(rng)
    z, x, y = np.indices(SHAPE)
    bright = np.sinc(z - 20) / (1 - np.clip((z - 20) ** 2, 0, None) + 1e-9)
    bright = np.where(abs(z - 20) == 1, 0.5, np.where(z == 20, 1.0, 0.0))
    spot = np.exp(-((x - 15) ** 2 + (y - 12) ** 2) / 1.44)
    volume += (1e4 * np.median(volume) * bright * spot).astype(np.float32)
    assert check_samples(xp.asarray(volume)).usable is None


def garblings(volume):
    frames = in_file_order(volume)
    raw = frames.tobytes()
    yield "swapped", frames.byteswap()
    yield "whole numbers swapped", np.round(frames).byteswap()
    yield "shifted", np.frombuffer(raw[1:] + raw[:1], "<f4").reshape(frames.shape)
    doubles = frames.astype(float).tobytes()[: len(raw)]
    yield "doubles", np.frombuffer(doubles, "<f4").reshape(frames.shape)


@pytest.mark.parametrize("number", range(4))
def test_a_tile_of_other_numbers_is_masked_whole(xp, rng, number):
    """Seen to fail where sizes without order pass."""
    name, frames = list(garblings(speckle(rng)))[number]
    found = check_samples(xp.asarray(from_file_order(frames)))
    assert found.flags == ("garbled",), name
    assert not to_host(found.usable).any()


@pytest.mark.parametrize("missing", [1, 0.5, 0.03, 1000])
def test_a_file_whose_end_is_zeros_is_masked_there(xp, rng, missing):
    """From the middle of an A-line on, as copies end at a block.

    Seen to fail without the search for zeros.
    """
    frames = in_file_order(speckle(rng))
    n = frames.size if missing == 1 else int(missing * frames.size) if missing < 1 else missing
    frames.reshape(-1)[frames.size - n :] = 0
    found = check_samples(xp.asarray(from_file_order(frames)))
    lines = (frames == 0).any(axis=2).T
    assert found.flags == (f"zeros:{lines.sum()}",)
    np.testing.assert_array_equal(to_host(found.usable), np.broadcast_to(~lines, SHAPE))


def test_zero_bscans_in_the_middle_are_masked(xp, rng):
    """Seen to fail without the search for zeros."""
    volume = speckle(rng)
    volume[:, :, 7:10] = 0
    found = check_samples(xp.asarray(volume))
    assert found.flags == ("zeros:90",)
    np.testing.assert_array_equal(to_host(found.usable).all(axis=(0, 1)), volume.any(axis=(0, 1)))


@pytest.mark.parametrize("kind", ["plain", "tiny unit", "zero planes", "clipped", "signed"])
def test_samples_of_a_microscope_pass(xp, rng, kind):
    volume = speckle(rng)
    if kind == "tiny unit":
        volume = volume * np.float32(1e-9)
    if kind == "zero planes":
        # The first samples of a spectrum's transform, which programs clear.
        volume[:3] = 0
    if kind == "clipped":
        volume = np.maximum(volume - 30, 1e-12)
    if kind == "signed":
        volume = volume - 20
    assert check_samples(xp.asarray(volume.astype(np.float32))).flags == ()


def test_a_tile_carries_the_flags_and_the_mask(xp, rng):
    volume = speckle(rng)
    volume[3, 4, 5], volume[6, 7, 8], volume[:, :, 20] = np.nan, 1e9, 0
    tile = prepare_tile(xp.asarray(volume), [None] * 3)
    assert tile.notes.flags == ("nan:1", "spikes:1", "zeros:30")
    assert (to_host(tile.valid) == 0).sum() == 2 + 30 * 40
    assert not to_host(tile.data)[to_host(tile.valid) == 0].any()
    garbled = prepare_tile(xp.asarray(volume.byteswap()), [None] * 3)
    assert garbled.notes.flags == ("garbled",) and not garbled.notes.bright
    assert not to_host(garbled.valid).any() and not to_host(garbled.data).any()
