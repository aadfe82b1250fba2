import importlib.util
import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numcodecs.zstd import Zstd

from tests.containers.made_up_module import CRCS, MAKEFILE, SYMBOLS, write_module, write_source

SCRIPT = Path(__file__).parents[2] / "admin/patch_nvidia_fs.py"
TOOLS = ["bash", "nm", "objdump", "objcopy", "awk", "od", "xz"]
needs_binutils = pytest.mark.skipif(
    not all(shutil.which(tool) for tool in TOOLS), reason=f"needs {', '.join(TOOLS)}"
)


def load():
    spec = importlib.util.spec_from_file_location("patch_nvidia_fs", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


patch = load()


@pytest.fixture
def source(tmp_path):
    return write_source(tmp_path / "nvidia-fs-2.99")


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mode) for path in folder.iterdir()}


def test_nothing_is_touched_without_apply(source, capsys):
    before = contents(source)
    assert patch.main([str(source)]) == 1
    assert contents(source) == before
    shown = capsys.readouterr().out
    assert "+\t@ ./create_nv.symvers.sh $(KVER)\n" in shown
    assert "-\t@ ./create_nv.symvers.sh\n" in shown
    assert "+\tvm_flags = vma->vm_flags;\n" in shown
    for name in ("create_nv.symvers.sh", "Makefile", "nvfs-mmap.c", "nvfs-dma.c"):
        assert f"--- a/{name}\n+++ b/{name}\n" in shown


@pytest.mark.skipif(not shutil.which("patch"), reason="needs patch")
def test_the_diff_is_what_apply_does(source, tmp_path, capsys):
    other = write_source(tmp_path / "other")
    patch.main([str(other)])
    diff = "--- a" + capsys.readouterr().out.partition("--- a")[2]
    subprocess.run(["patch", "-p1", "-s"], input=diff, text=True, cwd=other, check=True)
    assert patch.main([str(source), "--apply"]) == 0
    assert {k: v for k, v in contents(source).items() if "before-patch" not in k} == contents(other)


def test_applied_twice_is_applied_once_and_the_old_files_are_kept(source, capsys):
    before = contents(source)
    assert patch.main([str(source), "--apply"]) == 0
    once = contents(source)
    assert set(once) - set(before) == {
        f"{name}.before-patch"
        for name in ("create_nv.symvers.sh", "Makefile", "nvfs-mmap.c", "nvfs-dma.c")
    }
    for name, (content, mode) in before.items():
        assert once.get(f"{name}.before-patch", once[name])[0] == content
        assert once[name][1] == mode
    times = {path: path.stat().st_mtime_ns for path in source.iterdir()}
    capsys.readouterr()
    assert patch.main([str(source), "--apply"]) == patch.main([str(source)]) == 0
    assert contents(source) == once
    assert times == {path: path.stat().st_mtime_ns for path in source.iterdir()}
    assert "to do" not in capsys.readouterr().out


def test_a_second_original_gets_a_copy_of_its_own(source):
    patch.main([str(source), "--apply"])
    write_source(source)
    (source / "Makefile").write_text(MAKEFILE + "# a newer package\n")
    assert patch.main([str(source), "--apply"]) == 0
    assert (source / "Makefile.before-patch").read_text() == MAKEFILE
    assert (source / "Makefile.before-patch.1").read_text().endswith("# a newer package\n")
    assert not (source / "nvfs-mmap.c.before-patch.1").exists()


def run_lookup(source: Path, module: Path) -> subprocess.CompletedProcess:
    """Run the tree's script with a modinfo that names a module; nothing can answer a question."""
    tools = source.parent / "tools"
    tools.mkdir(exist_ok=True)
    shims = {"modinfo": f"#!/bin/sh\necho {module}\n"}
    if not shutil.which("zstd"):
        shims["zstd"] = (
            f"#!{sys.executable}\nimport sys\nfrom numcodecs.zstd import Zstd\n"
            "sys.stdout.buffer.write(Zstd().decode(open(sys.argv[-1], 'rb').read()))\n"
        )
    for name, text in shims.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return subprocess.run(
        ["bash", source / "create_nv.symvers.sh", "7.1.0"],
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def pack(path: Path, suffix: str) -> Path:
    packed = path.with_name(path.name + suffix)
    content = path.read_bytes()
    if suffix == ".zst":
        packed.write_bytes(Zstd(level=3).encode(content))
    elif suffix == ".xz":
        packed.write_bytes(lzma.compress(content))
    else:
        return path
    path.unlink()
    return packed


@pytest.mark.slow
@needs_binutils
@pytest.mark.parametrize("suffix", ["", ".xz", ".zst"])
@pytest.mark.parametrize("kind", ["A", "a", "R", "r"])
def test_versions_of_every_kind_of_record_and_packing(source, tmp_path, kind, suffix):
    path = tmp_path / "modules/nvidia.ko"
    write_module(path, kind)
    marks = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in marks.splitlines()} == {kind}
    module = pack(path, suffix)
    assert patch.main([str(source), "--apply"]) == 0
    # Left by an earlier build, and read-only: written over, or the versions would be of the past.
    for _ in range(2):
        done = run_lookup(source, module)
        assert done.returncode == 0, done.stderr
        assert "looked up for 7.1.0" in done.stdout
        lines = (source / "nv.symvers").read_text().splitlines()
        found = {line.split("\t")[1]: int(line.split("\t")[0], 16) for line in lines}
        assert found == CRCS
        assert {line.split("\t")[3] for line in lines} == {"EXPORT_SYMBOL"}


@needs_binutils
def test_what_it_mends_was_broken(source, tmp_path):
    path = tmp_path / "modules/nvidia.ko"
    write_module(path, "r")
    run_lookup(source, path)
    wrong = [line.split("\t")[0] for line in (source / "nv.symvers").read_text().splitlines()]
    assert [int(text, 16) for text in wrong] == [4, 8]  # places, not versions
    run_lookup(source, pack(path, ".zst"))
    assert (source / "nv.symvers").read_text() == ""


@needs_binutils
def test_a_module_that_cannot_be_unpacked_stops_the_build(source, tmp_path):
    patch.main([str(source), "--apply"])
    module = tmp_path / "nvidia.ko.zst"
    module.write_bytes(b"not packed at all")
    done = run_lookup(source, module)
    assert done.returncode == 1
    assert f"Cannot unpack {module}" in done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (
            "create_nv.symvers.sh",
            "KVER=${1:-$(uname -r)}",
            "KVER=$(uname -r)",
            ["lines 1-", "KVER"],
        ),
        ("create_nv.symvers.sh", 'case "$nvidia_mod" in', 'case "$other" in', ["begins a case"]),
        ("create_nv.symvers.sh", "*ko.xz)", "*.deb)", ["line 10", "*.deb)"]),
        ("create_nv.symvers.sh", "\tesac\n", "\n", ["line 9", "esac"]),
        ("create_nv.symvers.sh", "nm -o", "readelf", ["nm -o"]),
        ("Makefile", "./create_nv.symvers.sh", "./create.sh", ["create_nv.symvers.sh"]),
        ("Makefile", "./create_nv.symvers.sh", "./create_nv.symvers.sh 5.4", ["line 5", "unknown"]),
        ("Makefile", "symvers.sh\n", "symvers.sh\n\t./create_nv.symvers.sh\n", ["lines 5, 6"]),
        ("Makefile", "-C $(KDIR) $(PARAMS)", "-C /src", ["lines 1-", "$(KDIR)"]),
        (
            "nvfs-mmap.c",
            "vm_flags = ACCESS",
            "ACCESS_PRIVATE(vma, __vm_flags) |= ACCESS",
            ["line 5"],
        ),
        ("nvfs-dma.c", "#ifdef HAVE_BLK", "#ifndef HAVE_BLK", ["line 9", "#ifdef"]),
        ("nvfs-dma.c", "#ifndef QUIET", "#else", ["line 9"]),
    ],
)
def test_unknown_tree_is_rejected_unchanged(source, capsys, file, old, new, words):
    path = source / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    before = contents(source)
    for arguments in ([str(source)], [str(source), "--apply"]):
        assert patch.main(arguments) == 2
        told = capsys.readouterr().err
        assert file in told and all(word in told for word in words), told
    assert contents(source) == before


def test_a_folder_that_is_no_source(tmp_path, capsys):
    assert patch.main([str(tmp_path)]) == 2
    assert str(tmp_path / "create_nv.symvers.sh") in capsys.readouterr().err


def test_what_is_right_already_is_left(source, capsys):
    (source / "Makefile").write_text(
        MAKEFILE.replace("symvers.sh\n", "symvers.sh $(KVER)\n").replace(
            "M=$$PWD modules", "KBUILD_EXTRA_SYMBOLS=mine M=$$PWD modules"
        )
    )
    text = (source / "nvfs-mmap.c").read_text()
    (source / "nvfs-mmap.c").write_text(text.replace("ACCESS_PRIVATE(vma, __vm_flags)", "0"))
    assert patch.main([str(source), "--apply"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line for line in told if line.startswith("nothing")] == [
        "nothing  Makefile: versions of the kernel that is built for",
        "nothing  Makefile: versions handed to modpost",
        "nothing  nvfs-mmap.c: vm_flags by its public name",
    ]
    assert not (source / "Makefile.before-patch").exists()


def test_helpers_of_an_older_version_are_replaced(source):
    patch.main([str(source), "--apply"])
    path = source / "create_nv.symvers.sh"
    new = path.read_text()
    path.write_text(new.replace("zstd -q -d -c", "zstd -d"))
    assert patch.main([str(source)]) == 1
    assert patch.main([str(source), "--apply"]) == 0
    assert path.read_text() == new


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_all_is_taken_back_if_the_script_can_no_longer_be_read(source, capsys):
    path = source / "create_nv.symvers.sh"
    path.write_text(SYMBOLS.replace("done < <(", "done (("))
    before = contents(source)
    assert patch.main([str(source), "--apply"]) == 2
    assert "nothing was changed" in capsys.readouterr().err
    after = contents(source)
    assert {name: after[name] for name in before} == before


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
@pytest.mark.parametrize("kind", ["req_iterator", "blk_map_iter"])
def test_c_code_compiles_with_either_iterator_type(source, kind):
    (source / "made-up.h").write_text(
        "struct request { int n; };\nstruct req_iterator { int size; };\n"
        "struct blk_map_iter { int size; };\n"
        f"struct blk_dma_iter {{ struct {kind} iter; }};\n"
        "struct vm_area_struct { const unsigned long vm_flags; };\n"
        "int use(struct request *, struct req_iterator *);\n"
        "#define HAVE_BLK_RQ_DMA_MAP_ITER_START 1\n"
    )

    def compile_all() -> int:
        command = ["gcc", "-std=gnu11", "-Werror", "-Wall", "-fsyntax-only"]
        files = [source / "nvfs-mmap.c", source / "nvfs-dma.c"]
        return subprocess.run([*command, *files], capture_output=True).returncode

    assert compile_all() != 0
    assert patch.main([str(source), "--apply"]) == 0
    assert compile_all() == 0
