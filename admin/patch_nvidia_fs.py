#!/usr/bin/env python3
"""Make the source of the kernel module nvidia-fs build, and load, on 7.x kernels.

Looks at a source tree (such as /usr/src/nvidia-fs-2.28.4) and prints, as a unified diff, what would
have to change. Writes only with --apply, keeps a copy of each file it changes, and does nothing to
what is already right. Where a file does not look as expected it changes nothing at all and says
which line. Needs Python 3.9 or newer and nothing else.

Exit status: 0 nothing is left to do; 1 there is something to do (without --apply); 2 refused.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SYMBOLS = "create_nv.symvers.sh"
BEGIN = "# >>> modules packed in any way, symbol versions recorded in any way"
END = "# <<< modules packed in any way, symbol versions recorded in any way"

# Goes into the tree's shell script. A version is either the value of an absolute symbol (nm: A or
# a) or, since Linux 5.19, four bytes in a section where the symbol points (nm: R or r, and others).
HELPERS = r"""
# Set nvidia_mod to a file that nm can read; what an earlier build left is written over.
unpack_nvidia_mod()
{
	local packed=$nvidia_mod unpack
	case "$packed" in
		*.ko.zst) unpack='zstd -q -d -c' ;;
		*.ko.xz) unpack='xz -d -c' ;;
		*.ko.gz) unpack='gzip -d -c' ;;
		*) return 0 ;;
	esac
	nvidia_mod=$(basename "${packed%.*}")
	if ! $unpack "$packed" >| "$nvidia_mod"; then
		echo "-E- Cannot unpack $packed with ${unpack%% *}" >&2
		return 1
	fi
}

# Print what 'nm -o' prints, with each version of an nvidia_p2p symbol as an absolute one.
nm_with_crcs()
{
	local mod=$1 value section symbol crc words
	words=$(mktemp) || return 1
	objdump -t "$mod" | awk -F '\t' '/ __crc_nvidia_p2p_/ {
		n = split($1, left, " "); m = split($2, right, " ")
		if (left[n] != "*UND*") print left[1], left[n], right[m]
	}' | while read -r value section symbol; do
		crc=$value
		if [ "$section" != '*ABS*' ]; then
			objcopy -O binary --only-section="$section" "$mod" "$words" || continue
			crc=$(od -A n -t x4 -j $((16#$value)) -N 4 "$words" | tr -d ' ')
		fi
		echo "$mod:$crc A $symbol"
	done
	rm -f "$words"
	nm -o "$mod" | grep -v ' __crc_nvidia_p2p_'
}
"""


class Refusal(Exception):
    """A file is not as this script knows it."""


class Edit(NamedTuple):
    """One change: the file, what it is for, and the function from text to text."""

    file: str
    purpose: str
    change: Callable[[str], str]


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _only(file: str, pattern: str, text: str, expected: str) -> re.Match[str]:
    """Return the one match of a pattern; refuse none or several."""
    found = list(re.finditer(pattern, text, re.MULTILINE))
    if len(found) == 1:
        return found[0]
    if not found:
        raise Refusal(f"{file}, lines 1-{_line(text, len(text))}: no line {expected}")
    lines = ", ".join(str(_line(text, match.start())) for match in found)
    raise Refusal(f"{file}, lines {lines}: only one line was expected to be one {expected}")


def add_helpers(text: str) -> str:
    """Put the shell functions after the line that says for which kernel versions are looked up."""
    block = f"{BEGIN}{HELPERS}{END}\n"
    if BEGIN in text:
        old = _only(SYMBOLS, re.escape(BEGIN) + r"$[\s\S]*?^" + re.escape(END) + r"\n", text, "END")
        return text[: old.start()] + block + text[old.end() :]
    line = _only(SYMBOLS, r"^KVER=\$\{1:-.*\n", text, "that sets KVER from the first argument")
    return text[: line.end()] + "\n" + block + text[line.end() :]


def unpack_modules(text: str) -> str:
    """Replace the lines that unpack .ko.xz only, and stop at a file that is already there."""
    call = "\tunpack_nvidia_mod || exit 1\n"
    if call in text:
        return text
    begin = _only(
        SYMBOLS,
        r'^[ \t]*case[ \t]+"?\$\{?nvidia_mod\}?"?[ \t]+in[ \t]*\n',
        text,
        "that begins a case on $nvidia_mod",
    )
    end = re.compile(r"^[ \t]*esac[ \t]*\n", re.MULTILINE).search(text, begin.end())
    if not end:
        raise Refusal(f"{SYMBOLS}, line {_line(text, begin.start())}: this case has no esac")
    for arm in re.finditer(r"^[ \t]*([^\s()]+)\)", text[begin.end() : end.start()], re.MULTILINE):
        if not re.fullmatch(r'"?\*\.?ko\.(xz|zst|gz)"?', arm.group(1)):
            line = _line(text, begin.end() + arm.start())
            raise Refusal(f"{SYMBOLS}, line {line}: {arm.group(1)}) is no packed module")
    return text[: begin.start()] + call + text[end.end() :]


def read_versions(text: str) -> str:
    """Let the helper read the symbols, wherever nm did."""
    pattern = r'\bnm[ \t]+-o[ \t]+("?\$\{?nvidia_mod\}?"?)'
    changed = re.sub(pattern, r"nm_with_crcs \1", text)
    if not re.search(r'\bnm_with_crcs[ \t]+"?\$\{?nvidia_mod', changed):
        end = _line(text, len(text))
        raise Refusal(f"{SYMBOLS}, lines 1-{end}: no line reads symbols with nm -o $nvidia_mod")
    return changed


def name_kernel(text: str) -> str:
    """Look versions up for the kernel that is built for, which may not be the one that runs."""
    line = _only(
        "Makefile",
        r"^\t@?[ \t]*\./create_nv\.symvers\.sh(.*)$",
        text,
        "that runs create_nv.symvers.sh",
    )
    if "$(KVER)" in line.group(1):
        return text
    if line.group(1).strip():
        raise Refusal(f"Makefile, line {_line(text, line.start())}: unknown arguments")
    return text[: line.start(1)] + " $(KVER)" + text[line.end() :]


def hand_versions(text: str) -> str:
    """Give the versions to modpost by name: it writes Module.symvers and no longer reads it."""
    line = _only(
        "Makefile",
        r"^\t.*\$\(MAKE\).*-C[ \t]+\$\(KDIR\).*[ \t](M=\S+)[ \t]+modules[ \t]*$",
        text,
        "that builds the modules in $(KDIR)",
    )
    if "KBUILD_EXTRA_SYMBOLS=" in line.group():
        return text
    extra = 'KBUILD_EXTRA_SYMBOLS="$$PWD/nv.symvers $(KBUILD_EXTRA_SYMBOLS)" '
    return text[: line.start(1)] + extra + text[line.start(1) :]


def read_flags(text: str) -> str:
    """Read a mapping's flags by their public name, which every kernel since 6.3 has."""
    pattern = r"\bACCESS_PRIVATE\(\s*(\w+)\s*,\s*__vm_flags\s*\)"
    for match in re.finditer(pattern + r"\s*(?:[-+|&^]|<<|>>)?=(?!=)", text):
        raise Refusal(f"nvfs-mmap.c, line {_line(text, match.start())}: writes to __vm_flags")
    return re.sub(pattern, r"\1->vm_flags", text)


def follow_iterator(text: str) -> str:
    """Take the type of a request's iterator from the structure that holds it."""
    macro, new = "HAVE_BLK_RQ_DMA_MAP_ITER_START", "typeof(((struct blk_dma_iter *)0)->iter) *"
    guards: list[list] = []
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        directive = re.match(r"\s*#\s*(ifdef|ifndef|if|elif|else|endif)\b(.*)", line)
        if directive:
            word, rest = directive.groups()
            if word == "endif":
                if guards:
                    guards.pop()
            elif word in ("else", "elif"):
                if guards:
                    guards[-1][1] = False
            else:
                guards.append([rest, word != "ifndef"])
        elif re.search(r"\bstruct\s+req_iterator\s*\*", line):
            if not any(macro in name and positive for name, positive in guards):
                raise Refusal(f"nvfs-dma.c, line {number + 1}: not under #ifdef {macro}")
            lines[number] = re.sub(r"\bstruct\s+req_iterator\s*\*\s*", new, line)
    return "".join(lines)


EDITS = [
    # From the bottom of the file upwards: a refusal names lines of the file as it is.
    Edit(SYMBOLS, "symbol versions of either kind, upper and lower case", read_versions),
    Edit(SYMBOLS, "modules packed with zstd, xz or gzip, without asking", unpack_modules),
    Edit(SYMBOLS, "shell functions for these two", add_helpers),
    Edit("Makefile", "versions of the kernel that is built for", name_kernel),
    Edit("Makefile", "versions handed to modpost", hand_versions),
    Edit("nvfs-mmap.c", "vm_flags by its public name", read_flags),
    Edit("nvfs-dma.c", "the iterator's type, whichever the kernel has", follow_iterator),
]


def plan(folder: Path) -> tuple[dict[str, tuple[str, str]], list[tuple[Edit, bool]]]:
    """Return each file's text before and after, and which edits change something.

    Raises
    ------
    Refusal
        If a file is missing, or not as expected; it names the file and the line.
    """
    texts: dict[str, tuple[str, str]] = {}
    done = []
    for edit in EDITS:
        path = folder / edit.file
        if edit.file not in texts:
            if not path.is_file() or path.is_symlink():
                raise Refusal(f"{path}: no such file; is this the source of nvidia-fs?")
            try:
                text = path.read_bytes().decode("utf-8", "surrogateescape")
            except OSError as error:
                raise Refusal(f"{path}: cannot be read ({error.strerror})") from error
            texts[edit.file] = (text, text)
        before, now = texts[edit.file]
        changed = edit.change(now)
        done.append((edit, changed != now))
        texts[edit.file] = (before, changed)
    return texts, done


def _write(path: Path, text: str) -> None:
    """Replace a file at once, keeping its mode and owner."""
    status = path.stat()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
        Path(name).chmod(status.st_mode & 0o7777)
        with contextlib.suppress(PermissionError):
            os.chown(name, status.st_uid, status.st_gid)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


def _keep(path: Path) -> Path:
    """Copy a file to the first free name beside it; an equal copy is used again."""
    number = 0
    while True:
        copy = path.with_name(f"{path.name}.before-patch{f'.{number}' if number else ''}")
        if not copy.exists():
            shutil.copy2(path, copy)
            return copy
        if copy.read_bytes() == path.read_bytes():
            return copy
        number += 1


def apply(folder: Path, texts: dict[str, tuple[str, str]]) -> None:
    """Write the changed files, look at them again, and take all back if anything is wrong."""
    changed = {file: pair for file, pair in texts.items() if pair[0] != pair[1]}
    written: list[str] = []
    try:
        for file, (_, after) in changed.items():
            print(f"{file}: the file as it was is kept as {_keep(folder / file).name}")
            _write(folder / file, after)
            written.append(file)
        if any(is_changed for _, is_changed in plan(folder)[1]):
            raise Refusal(f"{folder}: not all changes are there after writing")
        shell = shutil.which("bash")
        if shell and subprocess.run([shell, "-n", str(folder / SYMBOLS)], check=False).returncode:
            raise Refusal(f"{folder / SYMBOLS}: bash cannot read it any more")
    except (OSError, Refusal) as error:
        for file in written:
            _write(folder / file, changed[file][0])
        raise Refusal(f"{error}; nothing was changed") from error


def main(arguments: list[str] | None = None) -> int:
    """Run the patch helper; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="folder with the module's source, /usr/src/nvidia-fs-…")
    parser.add_argument("--apply", action="store_true", help="write; without it nothing is touched")
    given = parser.parse_args(arguments)
    folder = Path(given.source)
    try:
        texts, edits = plan(folder)
        for edit, is_changed in edits:
            print(f"{'to do  ' if is_changed else 'nothing'}  {edit.file}: {edit.purpose}")
        if not any(is_changed for _, is_changed in edits):
            return 0
        if not given.apply:
            for file, (before, after) in texts.items():
                names = f"a/{file}", f"b/{file}"
                lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
                for line in difflib.unified_diff(*lines, *names):
                    sys.stdout.write(line if line.endswith("\n") else line + "\n")
            print("Nothing was written; --apply writes it.")
            return 1
        apply(folder, texts)
    except Refusal as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
        return 2
    print("Applied. Now build it: dkms remove, dkms add, dkms install, then modprobe nvidia-fs.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
