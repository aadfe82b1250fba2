"""The registry of codecs: what is derived from it or must agree with it."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from linumpy.store.codecs import CODECS, Codec, device_table, kind_of

ROOT = Path(__file__).resolve().parents[2]


def test_gpu_page_has_the_table_of_the_registry() -> None:
    """Seen to fail with gzip and zlib in one row."""
    assert device_table() in (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_entry_points_are_the_classes_of_the_registry() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    expected = {
        codec.zarr_class[0]: f"linumpy.gpu.codecs:{codec.zarr_class[1]}"
        for codec in CODECS.values()
        if codec.zarr_class
    }
    assert project["entry-points"]["zarr.codecs"] == expected


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.kind)
def test_named_classes_exist(codec: Codec) -> None:
    if codec.device is not None:
        module, _, name = codec.device.partition(":")
        assert callable(getattr(import_module(module), name))
    if codec.zarr_class is not None:
        registered = import_module("linumpy.gpu.codecs").CODECS[codec.zarr_class[0]]
        assert registered.__name__ == codec.zarr_class[1]
    assert kind_of(codec.kind) == kind_of(f"numcodecs.{codec.kind}") == codec.kind
    assert kind_of(f"other.{codec.kind}") is None
