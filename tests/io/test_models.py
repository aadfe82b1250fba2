import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linumpy.core.device import to_host
from linumpy.core.errors import InputError
from linumpy.io.models import load_model, read_json, save_model


@dataclass(frozen=True)
class Model:
    surface_um: np.ndarray
    voxel_um: tuple[float, float]
    names: list[str]
    count: int


@given(
    st.tuples(*[st.floats(-1e6, 1e6)] * 2),
    st.lists(st.text(max_size=5), max_size=4),
    st.integers(-(2**63), 2**64 - 1),
)
def test_models_come_back_as_they_were(tmp_path_factory, voxel, names, count):
    folder = tmp_path_factory.mktemp("m")
    model = Model(np.arange(6, dtype=np.float32).reshape(2, 3), voxel, names, count)
    save_model(folder, "stem", model)
    back = load_model(folder, "stem", Model)
    np.testing.assert_array_equal(back.surface_um, model.surface_um)
    assert back.surface_um.dtype == np.float32
    assert (back.voxel_um, back.names, back.count) == (voxel, names, count)


def test_device_arrays_are_saved(xp, tmp_path):
    save_model(tmp_path, "m", Model(xp.asarray(np.eye(3)), (1.0, 2.0), [], 1))
    np.testing.assert_array_equal(to_host(load_model(tmp_path, "m", Model).surface_um), np.eye(3))


def test_what_is_missing_or_broken_is_named(tmp_path):
    """Seen to fail without the errors of `models.read_json` and `untrusted.read_arrays`."""
    with pytest.raises(InputError, match=r"m\.json: no such file"):
        load_model(tmp_path, "m", Model)
    save_model(tmp_path, "m", Model(np.eye(2), (1.0, 2.0), [], 1))
    (tmp_path / "m.npz").write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"m\.npz"):
        load_model(tmp_path, "m", Model)
    save_model(tmp_path, "m", Model(np.eye(2), (1.0, 2.0), [], 1))
    (tmp_path / "m.json").write_text(json.dumps({"count": 1}))
    with pytest.raises(InputError, match="names, voxel_um"):
        load_model(tmp_path, "m", Model)
    for text in ("{", "[1]"):
        (tmp_path / "m.json").write_text(text)
        with pytest.raises(InputError, match="JSON"):
            read_json(tmp_path / "m.json")


def test_pickled_arrays_are_not_loaded(tmp_path):
    save_model(tmp_path, "m", Model(np.eye(2), (1.0, 2.0), [], 1))
    np.savez(tmp_path / "m.npz", surface_um=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"m\.npz"):
        load_model(tmp_path, "m", Model)


@dataclass(frozen=True)
class Inner:
    shift_px: int
    size_um: tuple[float, float]


@dataclass(frozen=True)
class Nested:
    best: Inner
    all: list[Inner]
    height: float
    optional: tuple[int, int] | None


def test_plain_models_are_one_json_and_nested_ones_become_objects(tmp_path):
    inner = Inner(3, (1.5, 2.0))
    save_model(tmp_path, "n", Nested(inner, [inner, inner], np.float32(0.5), (4, 5)))
    assert [p.name for p in tmp_path.iterdir()] == ["n.json"]
    plain = {"shift_px": 3, "size_um": [1.5, 2.0]}
    back = load_model(tmp_path, "n", Nested)
    assert back == Nested(plain, [plain, plain], 0.5, (4, 5))
    save_model(tmp_path, "n", Nested(inner, [], 1.0, None))
    assert load_model(tmp_path, "n", Nested).optional is None


@pytest.mark.parametrize("length", [0, 1, 20, 150])
def test_an_archive_cut_short_is_named(tmp_path, length):
    """Seen to fail without the error of `untrusted.read_arrays`."""
    save_model(tmp_path, "m", Model(np.eye(5), (1.0, 2.0), [], 1))
    whole = (tmp_path / "m.npz").read_bytes()
    assert len(whole) > 150
    (tmp_path / "m.npz").write_bytes(whole[:length])
    with pytest.raises(InputError, match=r"m\.npz"):
        load_model(tmp_path, "m", Model)


def test_a_single_array_is_no_archive(tmp_path):
    save_model(tmp_path, "m", Model(np.eye(5), (1.0, 2.0), [], 1))
    with (tmp_path / "m.npz").open("wb") as file:
        np.save(file, np.eye(5))
    with pytest.raises(InputError, match=r"m\.npz"):
        load_model(tmp_path, "m", Model)


def test_no_flipped_bit_of_an_archive_passes(tmp_path, rng):
    """Any byte may be hit: the same arrays, or an error that names the file."""
    surface = rng.normal(size=(4, 4))
    save_model(tmp_path, "m", Model(surface, (1.0, 2.0), [], 1))
    whole = (tmp_path / "m.npz").read_bytes()
    refused = 0
    for place in range(len(whole)):
        raw = bytearray(whole)
        raw[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "m.npz").write_bytes(raw)
        try:
            back = load_model(tmp_path, "m", Model)
        except InputError as error:
            assert "m.npz" in str(error) or "surface_um" in str(error)
            refused += 1
        else:
            np.testing.assert_array_equal(back.surface_um, surface)
    assert refused > 0.5 * len(whole)


def test_a_folder_is_no_json_file(tmp_path):
    (tmp_path / "m.json").mkdir()
    with pytest.raises(InputError, match=r"m\.json: cannot be read"):
        read_json(tmp_path / "m.json")


@dataclass(frozen=True)
class Grown:
    a: int
    later: list[float] = field(default_factory=list)


def test_fields_with_defaults_may_be_newer_than_the_file(tmp_path):
    """Seen to fail where a default that is made counted as none."""
    (tmp_path / "old.json").write_text('{"a": 3}')
    assert load_model(tmp_path, "old", Grown) == Grown(3)
