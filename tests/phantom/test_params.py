"""Parameters: bounds, presets, flags."""

from __future__ import annotations

import argparse
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linumpy.errors import InputError
from linumpy.phantom.params import (
    PRESETS,
    PhantomParams,
    add_flags,
    from_flags,
    parse_stage_to_array,
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
    with pytest.raises(InputError, match="tiny, small, large"):
        preset("huge")


def test_small_covers_what_it_says() -> None:
    params = preset("small")
    assert params.tile_fov_um == (1200.0, 1200.0)
    assert params.tile_step_um == (960.0, 960.0)
    assert params.mosaic_um == (4080.0, 4080.0)
    assert params.block_depth_um == 4 * 200 + 700 - 130
    assert params.raw_bytes == 80 * 4 * 140 * 180 * 150


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
