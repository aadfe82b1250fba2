"""Nothing that linumpy reads can run code: such features are absent or rejected."""

import ast
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zarr

from linumpy.core.errors import InputError
from linumpy.io.zarr_io import read_zarr
from linumpy.store.untrusted import read_arrays
from linumpy.store.untrusted_zarr import check_array
from tests.faults.bombs import array

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for d in ("linumpy", "scripts", "benchmarks") for p in (ROOT / d).rglob("*.py"))
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
ATTRIBUTES = {
    ("os", "system"), ("os", "popen"), ("numpy", "load"), ("np", "load"), ("np", "fromregex"),
    ("subprocess", "getoutput"), ("subprocess", "getstatusoutput"), ("tarfile", "open"),
    ("shutil", "unpack_archive"),
}  # fmt: skip
METHODS = {"extractall", "extract"}


def problems(text, name="x.py"):
    """Return what of a source could run what it reads, or unpack it anywhere."""
    found = []
    for node in ast.walk(ast.parse(text)):
        where = f"{name}:{getattr(node, 'lineno', 0)}"
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [f"{where}: import of {n}" for n in names if n.split(".")[0] in MODULES]
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in CALLS:
            found.append(f"{where}: {function.id}")
        if isinstance(function, ast.Attribute):
            owner = function.value.id if isinstance(function.value, ast.Name) else ""
            safe_load = function.attr == "load" and any(
                k.arg == "allow_pickle" and getattr(k.value, "value", True) is False
                for k in node.keywords
            )
            if (owner, function.attr) in ATTRIBUTES and not safe_load:
                found.append(f"{where}: {owner}.{function.attr}")
            if function.attr in METHODS:
                found.append(f"{where}: .{function.attr}")
        for keyword in node.keywords:
            value = getattr(keyword.value, "value", None)
            if keyword.arg in ("shell", "allow_pickle") and value is not False:
                found.append(f"{where}: {keyword.arg}={ast.unparse(keyword.value)}")
    return found


@pytest.mark.slow
def test_the_source_holds_nothing_that_runs_what_it_reads():
    """Seen to fail with `import pickle` in a module."""
    found = [p for path in SOURCES for p in problems(path.read_text(), str(path.relative_to(ROOT)))]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from yaml import load", "eval(x)", "exec(x)", "os.system(x)",
        "np.load(x)", "np.load(x, allow_pickle=True)", "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=y)", "archive.extractall(x)", "import joblib.numpy_pickle",
    ],
)  # fmt: skip
def test_it_would_be_found(text):
    """Each line, put into a module, is what the test above reports."""
    assert problems(text)


def test_what_is_allowed_is_not():
    assert not problems("np.load(x, allow_pickle=False); subprocess.run(x); re.compile(y)")


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return (Path.touch, (self.place,))


@pytest.mark.parametrize("place_of_codec", ["filters", "compressor"])
@pytest.mark.parametrize("kind", ["|O", "|u1"])
def test_zarr_never_unpickles(tmp_path, kind, place_of_codec):
    """zarr 3.1 finds no type for such arrays; should it ever, `check_array` knows the codec.

    Seen to fail (zarr's own error) without `metadata_of`.
    """
    import pickle

    place = tmp_path / "trapped"
    path = array(tmp_path / "a", version=2, content=pickle.dumps(Trap(place)))
    document = json.loads((path / ".zarray").read_text())
    document |= {"dtype": kind, "compressor": None, "filters": None, "fill_value": 0}
    codec = {"id": "pickle"}
    document[place_of_codec] = codec if place_of_codec == "compressor" else [codec]
    (path / ".zarray").write_text(json.dumps(document))
    with pytest.raises(InputError, match="pickle"):
        read_zarr(path)
    assert not place.exists()


@pytest.mark.parametrize("name", ["pickle", "json2", "msgpack2", "lzma", "bz2", "numcodecs.zfpy"])
def test_codecs_of_objects_or_of_any_size_are_refused(tmp_path, name):
    """Seen to fail without `_check_codecs`."""
    path = array(tmp_path / "a")
    document = json.loads((path / "zarr.json").read_text())
    metadata = zarr.open_array(path, mode="r").metadata
    document["codecs"].append({"name": name})

    class Changed:
        zarr_format, shape, chunk_grid = 3, metadata.shape, metadata.chunk_grid
        data_type = metadata.data_type

        def to_dict(self):
            return document

    with pytest.raises(InputError, match=f"the codec '{name}'"):
        check_array(Changed(), path)


def test_arrays_never_unpickle(tmp_path):
    """Seen to fail where arrays of objects are left to NumPy."""
    import pickle

    place = tmp_path / "trapped"
    member = io.BytesIO()
    np.lib.format.write_array(member, np.array([Trap(place)], object), allow_pickle=True)
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        archive.writestr("a.npy", member.getvalue())
        archive.writestr("b", pickle.dumps(Trap(place)))
    with pytest.raises(InputError, match="holds 'object', expected numbers"):
        read_arrays(tmp_path / "m.npz")
    assert not place.exists()
