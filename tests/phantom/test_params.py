"""Parameters: bounds, presets, flags."""

from __future__ import annotations

import argparse
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linumpy.core.errors import InputError
from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.phantom.flags import add_flags, from_flags
from linumpy.phantom.params import (
    PRESETS,
    PhantomParams,
    preset,
)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"nx": -1}, "nx = -1: expected at least 8"),
        ({"n_slices": 0}, "n_slices = 0: expected at least 1"),
        ({"overlap_fraction": 1.0}, "overlap_fraction = 1: expected less than 1"),
        ({"overlap_fraction": -0.1}, "overlap_fraction"),
        ({"pixel_um": 0.0}, "pixel_um = 0: expected more than 0"),
        ({"axial_um": float("nan")}, "axial_um = nan: expected a finite number"),
        ({"gap_um": float("inf")}, "gap_um = inf"),
        ({"speckle_correlation": 1.5}, "speckle_correlation = 1.5: expected at most 1"),
        ({"psf_lateral_um": 3.0}, "psf_lateral_um = 3 µm is narrower"),
        ({"psf_axial_um": 3.0}, "psf_axial_um = 3 µm is narrower"),
        ({"galvo_drift_max_px": 400}, "galvo_drift_max_px = 400"),
        ({"gap_um": 900.0}, "below the imaged depth of 700 µm"),
        ({"missing_slices": (9,)}, "missing_slices: there is no slice 9"),
        ({"rehomed_slices": (-1,)}, "rehomed_slices: there is no slice -1"),
        ({"glitch_slices": (5,)}, "glitch_slices: there is no slice 5"),
        ({"bad_slices": (5,)}, "bad_slices: there is no slice 5"),
        ({"cut_tilt_um": 300.0}, "cut_tilt_um = 300: half of it"),
        ({"gap_um": 550.0, "cut_tilt_um": 250.0}, "below the imaged depth of 700 µm"),
        ({"slice_rotation_rms_deg": 90.0}, "slice_rotation_rms_deg = 90: expected at most 45"),
        ({"dark_tile_fraction": 1.1}, "dark_tile_fraction = 1.1: expected at most 1"),
        ({"missing_slices": (0, 1, 2, 3, 4)}, "every slice is missing"),
        ({"missing_tiles": ("1:2",)}, "'1:2' is not SLICE:IX:IY"),
        ({"missing_tiles": ("1:2:9",)}, "there is no tile '1:2:9'"),
        ({"stage_to_array": "x,y"}, "stage_to_array"),
        ({"stage_to_array": "+x,-x"}, "stage_to_array"),
    ],
)
def test_bad_value_is_refused_by_name(changes: dict[str, object], names: str) -> None:
    with pytest.raises(InputError, match="(?s).*") as caught:
        preset("small", **changes)
    assert names in str(caught.value)


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="tiny, small, hard, drift, large"):
        preset("huge")


def test_small_has_its_documented_extent() -> None:
    params = preset("small")
    assert params.tile_fov_um == (1200.0, 1200.0)
    assert params.tile_step_um == (960.0, 960.0)
    assert params.mosaic_um == (4080.0, 4080.0)
    assert params.block_depth_um == 4 * 200 + 700 - 130
    assert params.raw_bytes == 80 * 4 * 140 * 180 * 150


def test_hard_has_every_difficulty_and_the_others_none() -> None:
    hard = preset("hard")
    assert len(hard.missing_slices) == 2 and np.ptp(hard.missing_slices) > 1
    assert len(hard.rehomed_slices) == len(hard.bad_slices) == len(hard.glitch_slices) == 1
    assert hard.cut_tilt_um > 0 and hard.dark_tile_fraction == 0.1
    assert hard.galvo_drift_per_tile_px > 0 and hard.slice_rotation_rms_deg == 0.5
    # Nothing of a gap is invented that is more than one slice wide.
    gone = sorted({*hard.missing_slices, *hard.bad_slices})
    assert np.diff(gone).min() > 1 and gone[0] > 0 and gone[-1] < hard.n_slices - 1
    assert hard.raw_bytes < 1.6e9 and preset("drift").raw_bytes < 1.5e9
    for name in ("tiny", "small", "large"):
        calm = preset(name)
        assert calm.slice_rotation_rms_deg == calm.cut_tilt_um == calm.dark_tile_fraction == 0
        assert calm.bad_slices == calm.glitch_slices == calm.missing_slices == ()
        assert calm.galvo_drift_per_tile_px == 0


def test_stage_mapping() -> None:
    assert parse_stage_to_array("+x,+y") == ((0, 1), (1, 1))
    assert parse_stage_to_array("-y,+x") == ((1, -1), (0, 1))


def _parse(*argv: str, name: str = "small") -> PhantomParams:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return from_flags(parser.parse_args(argv), name)


def test_every_parameter_is_a_flag_and_no_flag_changes_nothing() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    text = parser.format_help()
    assert all(f"--{item.name}" in text for item in dataclasses.fields(PhantomParams))
    for name in PRESETS:
        assert _parse(name=name) == preset(name)


def test_lists_of_missing_things_are_read() -> None:
    params = _parse("--missing_slices", "1", "3", "--missing_tiles", "0:1:2", "2:0:0")
    assert params.missing_slices == (1, 3)
    assert params.missing_tile_indices() == {(0, 1, 2), (2, 0, 0)}


@given(
    st.floats(0, 500), st.integers(8, 500), st.floats(0, 0.99), st.floats(0, 1, exclude_min=True)
)
def test_flags_round_trip(jitter: float, ny: int, overlap: float, corner: float) -> None:
    params = _parse(
        "--jitter_rms_um", repr(jitter), "--ny", str(ny),
        "--overlap_fraction", repr(overlap), "--vignetting_corner", repr(corner), name="tiny",
    )  # fmt: skip
    expected = preset(
        "tiny", jitter_rms_um=jitter, ny=ny, overlap_fraction=overlap, vignetting_corner=corner
    )
    assert params == expected
