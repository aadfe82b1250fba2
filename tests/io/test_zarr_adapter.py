"""Zarr's internals stay in one module, and mean the same in all of its versions."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADAPTER = ROOT / "linumpy/io/zarr_adapter.py"
MODULES = sorted(
    path
    for folder in ("linumpy", "scripts", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if path != ADAPTER
)
PRIVATE_ATTRIBUTES = {
    "_async_array", "_chunk_grid", "async_array", "get_chunk_spec", "python_impl"
}  # fmt: skip


def private_names(source):
    """Names of Zarr and zarrs that a module uses and that are not public."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
            if node.attr in PRIVATE_ATTRIBUTES:
                found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        else:
            continue
        for name in names:
            parts = name.split(".") if re.fullmatch(r"[\w.]+", name) else [name]
            inside = parts[0] in ("zarr", "zarrs") and len(parts) > 1
            private = any(part.startswith("_") and part != "__version__" for part in parts[1:])
            if inside and (parts[1] == "core" or private):
                found.add(name)
    return found


def test_no_other_module_uses_internal_names():
    found = {path.name: private_names(path.read_text()) for path in MODULES}
    assert len(found) > 200
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from zarr.core.sync import sync",
        "from zarr import core",
        "import zarr.core.array",
        "from zarr.codecs._v2 import V2Codec",
        "import zarr\nzarr.core.sync.sync(1)",
        "from zarrs._internal import CodecPipelineImpl",
        "path = 'zarr.core.codec_pipeline.FusedCodecPipeline'",
        "array.async_array.codec_pipeline",
        "pipeline.python_impl",
    ],
)
def test_internal_names_are_found(source):
    assert private_names(source)


def test_public_names_are_let_through():
    public = "import zarr\nfrom zarr.buffer.cpu import Buffer\nprint(zarr.__version__)"
    assert private_names(public) == set()
