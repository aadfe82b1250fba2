"""Kernels that were compiled beforehand: found by source and options, else compiled as ever."""

import os
import sys
import zipfile
from types import ModuleType, SimpleNamespace

import pytest

from linumpy.core import compile_kernels, compiled_kernels
from linumpy.core.compile_kernels import (
    COMPILERS,
    cupy_kernels,
    digest_of,
    main,
    missing_bundles,
    own_kernels,
    write_list,
)
from linumpy.core.compiled_kernels import (
    LOADER,
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


def cupy_13(
    source, options, arch, cache_dir, extra_source=None, backend="nvrtc",
    enable_cooperative_groups=False, name_expressions=None, log_stream=None,
    cache_in_memory=False, jitify=False,
):  # fmt: skip
    """Stand in for CuPy 13.4's loader."""
    return source, options, arch


def cupy_14(
    source, options, arch, extra_source=None, backend="nvrtc", enable_cooperative_groups=False,
    name_expressions=None, log_stream=None, cache_in_memory=False, jitify=False, to_ltoir=False,
):  # fmt: skip
    """Stand in for CuPy 14.2's loader."""
    return source, options, arch


class Module:
    """Holds the code that it was loaded from."""

    def load(self, code):
        """Take machine code."""
        self.code = code


@pytest.fixture(params=[cupy_13, cupy_14])
def compiler(request, monkeypatch):
    """A pretended CuPy, of an older and a newer release, on a GPU of compute capability 9.0."""
    made = SimpleNamespace(_compile_with_cache_cuda=request.param)
    made.nvrtc = SimpleNamespace(getVersion=lambda: (12, 9))
    modules = {name: ModuleType(name) for name in ("cupy", "cupy.cuda", "cupy._core")}
    modules["cupy.cuda"].compiler = made
    modules["cupy.cuda"].function = SimpleNamespace(Module=Module)
    made.current = "90"
    modules["cupy.cuda"].Device = lambda: SimpleNamespace(compute_capability=made.current)
    modules["cupy._core"].core = SimpleNamespace(CUPY_CACHE_KEY="these-headers")
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("CUPY_CUDA_COMPILE_WITH_DEBUG", raising=False)
    return made


def test_compiled_kernels_are_taken_and_others_loaded_as_ever(bundle, compiler):
    """Seen to fail where all arguments but the first three are ignored, and any one of them."""
    newer = getattr(compiler, LOADER) is cupy_14
    # As CuPy calls it: folder of its cache until release 13, then what names a kernel there.
    rest = (["extra"] if newer else ["/cache", "extra"]) + ["nvrtc", False, None, None]
    use_compiled(bundle)
    load = getattr(compiler, LOADER)
    assert load(OWN, OPTIONS, "90", *rest).code == b"own code"
    assert load(CUPY, OPTIONS, None, *rest).code == b"cupy code"
    template = [*rest[:-2], ("template<int>",), None]
    for arguments in (
        ("other", OPTIONS, "90", *rest),
        (OWN, OPTIONS, "80", *rest),
        (OWN, OPTIONS[:2], None, *rest),
        (OWN, OPTIONS, "90", *template),
    ):
        assert load(*arguments) == arguments[:3]
    named = [{"jitify": True}, {"enable_cooperative_groups": True}, {"log_stream": object()}]
    named += [{"backend": "nvcc"}, *[{"to_ltoir": True}] * newer]
    for special in named:
        assert load(OWN, OPTIONS, "90", rest[0], **special) == (OWN, OPTIONS, "90")


def test_each_gpu_gets_code_of_its_own_architecture(bundle, compiler):
    """Seen to fail with the first GPU's architecture for all."""
    with zipfile.ZipFile(bundle / "sm_80.zip", "w") as file:
        file.writestr(kernel_key(OWN, OPTIONS), b"older code")
        file.comment = HERE.as_comment("digest")
    use_compiled(bundle)
    load = getattr(compiler, LOADER)
    found = []
    for compiler.current in ("80", "90", "75"):
        found.append(load(OWN, OPTIONS, None, "/cache"))
    assert [module.code for module in found[:2]] == [b"older code", b"own code"]
    assert found[2] == (OWN, OPTIONS, None)


@pytest.mark.parametrize(("value", "compiles"), [("1", True), ("0", False), ("", False)])
def test_code_for_debugging_is_compiled(bundle, compiler, monkeypatch, value, compiles):
    """As CuPy reads the variable. Seen to fail where any value counts."""
    monkeypatch.setenv("CUPY_CUDA_COMPILE_WITH_DEBUG", value)
    before = vars(compiler).copy()
    use_compiled(bundle)
    assert (vars(compiler) == before) is compiles


def test_nothing_changes_without_bundles(tmp_path, compiler):
    use_compiled.cache_clear()
    before = vars(compiler).copy()
    use_compiled(tmp_path)
    assert vars(compiler) == before


@pytest.mark.parametrize("other", [None, lambda *arguments: arguments])
def test_unknown_cupy_compiles_as_ever(bundle, compiler, other):
    vars(compiler).pop(LOADER)
    if other is not None:
        setattr(compiler, LOADER, other)
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


def test_kernels_are_named_by_what_is_asked_for(compiler, monkeypatch):
    """Not by what CuPy adds to it. Seen to fail where the compiler's options name them."""

    def compile_with_cache(source, options, arch, prepend_cupy_headers):
        return getattr(compiler, LOADER)(source, (*options, "-I/include"), arch, "/cache")

    def load_or_compile(source, options, arch, cache_dir):
        name = next(name for name in COMPILERS if hasattr(compiler, name))
        return getattr(compiler, name)(source, (*options, "-ftz=true"), arch, "file.cu")

    monkeypatch.setattr(compiler, LOADER, load_or_compile)
    sys.modules["cupy._core"].core.compile_with_cache = compile_with_cache
    compiler._get_arch_for_options_for_nvrtc = None
    setattr(compiler, COMPILERS[1], lambda source, options, *others: (b"code", None))
    before = vars(compiler).copy()
    made = compile_kernels.compile_kernel((OWN, ("--std=c++17",)), 90)
    assert made == (kernel_key(OWN, ("--std=c++17",)), b"code")
    assert vars(compiler) == before


def test_bundles_are_made_without_code_for_debugging(monkeypatch, tmp_path):
    monkeypatch.setenv("CUPY_CUDA_COMPILE_WITH_DEBUG", "1")
    monkeypatch.setenv("CUPY_CACHE_DIR", "elsewhere")
    compile_kernels._use_cache(str(tmp_path))
    assert "CUPY_CUDA_COMPILE_WITH_DEBUG" not in os.environ
    assert os.environ["CUPY_CACHE_DIR"] == str(tmp_path)


def test_bundle_with_other_names_is_missing(tmp_path):
    """Names of before came from the compiler's options. Seen to fail with that digest."""
    keys = "".join(sorted(kernel_key(*kernel) for kernel in compile_kernels.all_kernels()))
    with zipfile.ZipFile(tmp_path / "sm_90.zip", "w") as file:
        file.comment = HERE.as_comment(kernel_key(keys, ()))
    assert missing_bundles(["90"], tmp_path) == ["90"]


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
