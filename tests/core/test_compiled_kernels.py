"""Kernels that were compiled beforehand: found by source and options, else compiled as ever."""

import sys
import zipfile
from types import ModuleType, SimpleNamespace

import pytest

from linumpy.core import compile_kernels, compiled_kernels
from linumpy.core.compile_kernels import (
    cupy_kernels,
    digest_of,
    main,
    missing_bundles,
    own_kernels,
    write_list,
)
from linumpy.core.compiled_kernels import (
    COMPILERS,
    Origin,
    bundle_path,
    find_compiled,
    kernel_key,
    use_compiled,
)

OWN = 'extern "C" __global__ void own() {}'
CUPY = f"#include <cupy/carray.cuh>\n{OWN}"
HERE = Origin(12, "these-headers")
OPTIONS = ("-I/somewhere", "--std=c++17", "-ftz=true")


@pytest.fixture
def bundle(tmp_path):
    """A bundle of two kernels for compute capability 9.0."""
    with zipfile.ZipFile(tmp_path / "sm_90.zip", "w") as file:
        file.writestr(kernel_key(OWN, OPTIONS), b"own code")
        file.writestr(kernel_key(CUPY, OPTIONS), b"cupy code")
        file.comment = HERE.as_comment("digest")
    compiled_kernels._open_bundle.cache_clear()
    use_compiled.cache_clear()
    return tmp_path


def test_key_is_of_source_and_options_without_places():
    key = kernel_key(OWN, OPTIONS)
    assert key == kernel_key(OWN, ("-ftz=true", "--std=c++17", "-I/elsewhere", "-ftz=true"))
    assert len({key, kernel_key(OWN + " ", OPTIONS), kernel_key(OWN, OPTIONS[:2])}) == 3


@pytest.mark.parametrize(
    ("capability", "stem"),
    [
        ("75", "sm_75"),
        ("80", "sm_80"),
        ("89", "sm_80"),
        ("90", "sm_90"),
        ("103", "sm_100"),
        ("121", "sm_120"),
        ("70", None),
        ("110", None),
    ],
)
def test_bundle_is_of_the_same_major_capability(tmp_path, capability, stem):
    for number in (75, 80, 90, 100, 120):
        (tmp_path / f"sm_{number}.zip").touch()
    found = bundle_path(capability, tmp_path)
    assert (found and found.stem) == stem


def test_newest_code_that_runs_is_taken(tmp_path):
    for number in (80, 86, 89):
        (tmp_path / f"sm_{number}.zip").touch()
    found = [bundle_path(capability, tmp_path).stem for capability in ("80", "87", "89")]
    assert found == ["sm_80", "sm_86", "sm_89"]


def test_kernels_of_another_origin_are_not_taken(bundle):
    others, newer, older = (
        Origin(12, "others"),
        Origin(13, "these-headers"),
        Origin(11, "these-headers"),
    )
    assert find_compiled(CUPY, OPTIONS, "90", HERE, bundle) == b"cupy code"
    assert find_compiled(CUPY, OPTIONS, "90", newer, bundle) == b"cupy code"
    assert find_compiled(CUPY, OPTIONS, "90", others, bundle) is None
    assert find_compiled(OWN, OPTIONS, "90", others, bundle) == b"own code"
    assert find_compiled(OWN, OPTIONS, "90", older, bundle) is None
    assert find_compiled(OWN, OPTIONS[1:2], "90", HERE, bundle) is None
    assert find_compiled(OWN, OPTIONS, "80", HERE, bundle) is None


def test_damaged_bundle_is_as_none(bundle):
    path = bundle / "sm_90.zip"
    content = bytearray(path.read_bytes())
    content[content.index(b"own code")] ^= 1
    path.write_bytes(content)
    assert find_compiled(OWN, OPTIONS, "90", HERE, bundle) is None
    path.write_bytes(b"no zip")
    compiled_kernels._open_bundle.cache_clear()
    assert find_compiled(OWN, OPTIONS, "90", HERE, bundle) is None


@pytest.fixture(params=COMPILERS)
def compiler(request, monkeypatch):
    """A pretended CuPy that has one of the two functions, which answers its arguments."""
    made = SimpleNamespace(**{request.param: lambda *args, **named: ("compiled", args, named)})
    made.nvrtc = SimpleNamespace(getVersion=lambda: (12, 9))
    made.compile = lambda *args, **named: getattr(made, request.param)(*args, **named)
    modules = {name: ModuleType(name) for name in ("cupy", "cupy.cuda", "cupy._core")}
    modules["cupy.cuda"].compiler = made
    modules["cupy._core"].core = SimpleNamespace(CUPY_CACHE_KEY="these-headers")
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_compiled_kernels_are_taken_and_others_compiled(bundle, compiler):
    use_compiled(bundle)
    # As CuPy calls it: file, names of templates, log, in memory, jitify, method.
    others = ("name.cu", None, None, False, False, None)
    assert compiler.compile(OWN, OPTIONS, "90", *others) == (b"own code", None)
    assert compiler.compile(CUPY, OPTIONS, "90", *others) == (b"cupy code", None)
    left = [
        ("other", OPTIONS, "90", *others),
        (OWN, OPTIONS, "80", *others),
        (OWN, OPTIONS, "90", "name.cu", ("template<int>",), None, False, False, None),
        (OWN, OPTIONS, "90", "name.cu", None, None, False, False, "lto"),
        (OWN, OPTIONS),
    ]
    for arguments in left:
        kind, got, _ = compiler.compile(*arguments)
        assert kind == "compiled" and got[: len(arguments)] == arguments


def test_nothing_changes_without_bundles(tmp_path, compiler):
    use_compiled.cache_clear()
    before = vars(compiler).copy()
    use_compiled(tmp_path)
    assert vars(compiler) == before


def test_unknown_cupy_compiles_as_ever(bundle, compiler):
    for name in COMPILERS:
        vars(compiler).pop(name, None)
    before = vars(compiler).copy()
    use_compiled(bundle)
    assert vars(compiler) == before


def test_list_of_kernels_is_sources_without_places(tmp_path):
    kernels = cupy_kernels()
    assert len(kernels) == len(set(kernels)) >= 250
    assert all(source.startswith("#include <cupy/") for source, _ in kernels)
    assert all("__global__" in source for source, _ in kernels)
    assert not [o for _, options in kernels for o in options if o.startswith(("-I", "/"))]
    write_list([*kernels[5:], *kernels], tmp_path / "list")
    assert cupy_kernels(tmp_path / "list") == kernels


def test_own_kernels_are_those_of_all_rooms():
    starts = {source.split("\n", 1)[0] for source, _ in own_kernels()}
    assert len(starts) == len(own_kernels()) == 4


def test_bundle_of_other_sources_is_missing(tmp_path):
    kernels = compile_kernels.all_kernels()
    for number, listed in ((80, kernels), (90, kernels[1:])):
        with zipfile.ZipFile(tmp_path / f"sm_{number}.zip", "w") as file:
            file.comment = HERE.as_comment(digest_of(listed))
    assert missing_bundles(["120", "90", "89", "80", "90"], tmp_path) == ["120", "90"]
    (tmp_path / "sm_80.zip").write_bytes(b"no zip")
    assert missing_bundles(["80"], tmp_path) == ["80"]


def test_kernel_that_cannot_be_compiled_is_left_out(monkeypatch):
    def compile_kernel(kernel, architecture):
        if architecture == 75:
            raise RuntimeError("no such header")
        return kernel[0], b"code"

    monkeypatch.setattr(compile_kernels, "compile_kernel", compile_kernel)
    jobs = [((OWN, OPTIONS), number) for number in (75, 90)]
    assert [compile_kernels._compile_one(job) for job in jobs] == [None, (OWN, b"code")]


def test_build_goes_on_without_a_compiler(tmp_path, monkeypatch, capsys):
    def missing(architectures):
        raise ImportError("no CuPy")

    monkeypatch.setattr(compile_kernels, "_supported", missing)
    assert main(["--output", str(tmp_path)]) == 0
    assert "compiled at first use: no compiler here (no CuPy)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
