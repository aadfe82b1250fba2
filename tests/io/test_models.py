import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linumpy.device import to_host
from linumpy.errors import InputError
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
    st.integers(),
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
