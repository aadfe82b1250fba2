"""Synthetic nvidia-fs source tree and kernel module with symbol versions."""

from __future__ import annotations

import struct
from pathlib import Path

CRCS = {"nvidia_p2p_get_pages": 0x5B3F3E79, "nvidia_p2p_put_pages": 0x00E487AC}

# Only what the patch helper must recognise is as it is in the real files.
SYMBOLS = r"""#!/bin/bash
cd "$(dirname "$0")" || exit 1
KVER=${1:-$(uname -r)}
echo "looked up for $KVER"
: > nv.symvers
for mod in nvidia
do
	nvidia_mod=$(modinfo -F filename -k "$KVER" $mod)
	case "$nvidia_mod" in
		*ko.xz)
			cp $nvidia_mod .
			nvidia_mod=$(basename $nvidia_mod .xz)
			xz -d $nvidia_mod.xz
			;;
	esac
	if (nm -o $nvidia_mod | grep "__crc_nvidia_p2p_" | grep -qe "\sR\s*__crc"); then
		echo "relative" >&2
		exit 3
	fi
	while read -r line
	do
		file=$(echo $line | cut -f1 -d:)
		crc=$(echo $line | cut -f2 -d: | cut -f1 -d" ")
		sym=$(echo $line | cut -f2 -d: | cut -f3 -d" " | sed -e 's/__crc_//g')
		echo -e "0x$crc\t$sym\t$file\tEXPORT_SYMBOL\t" >> nv.symvers
	done < <(nm -o $nvidia_mod | grep "__crc_nvidia_p2p_")
done
"""

MAKEFILE = """KVER ?= $(shell uname -r)
KDIR := /lib/modules/$(KVER)/build

symbols:
\t@ ./create_nv.symvers.sh
\t@ cat nv.symvers >> Module.symvers

module: symbols
\t@ FLAGS=y $(MAKE) -j4 -C $(KDIR) $(PARAMS) M=$$PWD modules

help:
\t$(MAKE) -C $(KDIR) M=$$PWD help
"""

MMAP = """#include "made-up.h"
unsigned long flags_of(struct vm_area_struct *vma)
{
\tunsigned long vm_flags;
\tvm_flags = ACCESS_PRIVATE(vma, __vm_flags);
\treturn vm_flags;
}
"""

DMA = """#include "made-up.h"
int old_way(struct request *req)
{
\tstruct req_iterator iter;
\treturn use(req, &iter);
}
#ifdef HAVE_BLK_RQ_DMA_MAP_ITER_START
#ifndef QUIET
static int step(struct request *req, struct req_iterator *req_iter)
{
\treturn req_iter->size;
}
#endif
int new_way(struct request *req, struct blk_dma_iter *iter)
{
\tstruct req_iterator *req_iter = &iter->iter;
\treturn step(req, req_iter);
}
#endif
"""


def write_source(folder: Path) -> Path:
    """Write the tree; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "create_nv.symvers.sh": SYMBOLS,
        "Makefile": MAKEFILE,
        "nvfs-mmap.c": MMAP,
        "nvfs-dma.c": DMA,
        "dkms.conf": 'PACKAGE_NAME="made-up"\n',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "create_nv.symvers.sh").chmod(0o755)
    return folder


def write_module(path: Path, kind: str) -> None:
    """Write a kernel module that holds CRCS.

    Parameters
    ----------
    kind
        As nm would mark the records: "A" or "a", values of global or local absolute symbols;
        "R" or "r", values in a section to which global or local symbols point.
    """
    section = b"\xff\xff\xff\xff" + b"".join(struct.pack("<I", crc) for crc in CRCS.values())
    names, symbols = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for index, (name, crc) in enumerate(CRCS.items()):
        binding = 0x10 if kind.isupper() else 0
        at, value = (0xFFF1, crc) if kind in "Aa" else (1, 4 + 4 * index)
        symbols += struct.pack("<IBBHQQ", len(names), binding, 0, at, value, 0)
        names += f"__crc_{name}".encode() + b"\0"
    headings = b"\0__kcrctab_gpl\0.symtab\0.strtab\0.shstrtab\0"
    first_global = 1 if kind.isupper() else 1 + len(CRCS)
    parts = [  # name, type, flags, content, link, info, entry size
        (b"__kcrctab_gpl", 1, 2, section, 0, 0, 0),
        (b".symtab", 2, 0, symbols, 3, first_global, 24),
        (b".strtab", 3, 0, names, 0, 0, 0),
        (b".shstrtab", 3, 0, headings, 0, 0, 0),
    ]
    content, table = b"", struct.pack("<IIQQQQIIQQ", *[0] * 10)
    for name, sort, flags, data, link, info, entry in parts:
        content += b"\0" * (-len(content) % 8)
        at = headings.index(b"\0" + name + b"\0") + 1
        table += struct.pack(
            "<IIQQQQIIQQ", at, sort, flags, 0, 64 + len(content), len(data), link, info, 8, entry
        )
        content += data
    content += b"\0" * (-len(content) % 8)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, 64 + len(content), 0, 64, 0, 0, 64, 5, 4
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + content + table)
