#!/usr/bin/env python3
"""Say whether GPUDirect Storage reads natively on this server, or in compatibility mode, and why.

Needs Python 3.9 or newer and nothing else: copy this one file to a bare server and run it, as the
user who will read. It only reads files under /proc, /sys, /etc, /lib, /usr, /dev and /run.

Exit status: 0 native; 1 compatibility mode; 2 cannot be told from here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

OK, NO, DOUBT, NOTE = "ok", "no", "doubt", "note"
"""What a finding does to the verdict: nothing, compatibility mode, unknown, nothing."""

VERDICTS = {"native": 0, "compatibility": 1, "unknown": 2}
OLDEST_KERNEL = (4, 15)
PATCHED_KERNEL = (7, 0)
P2PDMA_KERNEL = (6, 2)

# File systems behind a network card: the driver that must have announced itself to nvidia-fs.
NETWORK = {
    "lustre": "lnet",
    "nfs": "rpcrdma",
    "nfs4": "rpcrdma",
    "beegfs": "beegfs",
    "gpfs": "mmfslinux",
    "wekafs": "wekafsio",
}


class Finding(NamedTuple):
    """One thing that was looked at: its name, what it does to the verdict, what to do."""

    check: str
    state: str
    what: str
    advice: str = ""


class Tree:
    """The server's files, or a copy of them under another folder."""

    def __init__(self, root: str = "/"):
        self.root = root.rstrip("/")

    def path(self, name: str) -> Path:
        """Return where an absolute path of the server lies."""
        return Path(self.root + name)

    def text(self, name: str) -> str:
        """Return a file's text; empty if it is missing or cannot be read."""
        try:
            return self.path(name).read_text(errors="replace")
        except OSError:
            return ""

    def glob(self, pattern: str) -> list[Path]:
        """Return what matches an absolute pattern."""
        try:
            return sorted(Path(self.root + "/").glob(pattern.lstrip("/")))
        except OSError:
            return []


def _version(text: str) -> str:
    found = re.search(r"\d+(\.\d+)+", text)
    return found.group() if found else ""


def _pair(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def _loaded(tree: Tree, module: str) -> bool:
    name = module.replace("-", "_")
    lines = tree.text("/proc/modules").splitlines()
    return (
        any(line.split(" ")[0] == name for line in lines)
        or tree.path("/sys/module/" + name).is_dir()
    )


def check_kernel(tree: Tree) -> tuple[Finding, str]:
    """Return what the kernel's release says, and the release."""
    release = tree.text("/proc/sys/kernel/osrelease").strip()
    pair = _pair(release)
    if pair == (0, 0):
        what = "/proc/sys/kernel/osrelease does not say which kernel runs"
        return Finding("kernel", DOUBT, what), release
    if pair < OLDEST_KERNEL:
        what = f"{release}: nvidia-fs needs 4.15 or newer"
        return Finding("kernel", NO, what, "install a newer kernel"), release
    return Finding("kernel", OK, release), release


def check_driver(tree: Tree) -> Finding:
    """Return whether the GPU driver runs, its version, and which kind of kernel modules it has."""
    text = tree.text("/proc/driver/nvidia/version")
    version = _version(text) or tree.text("/sys/module/nvidia/version").strip()
    if not text and not _loaded(tree, "nvidia"):
        what = "the kernel module nvidia is not loaded"
        return Finding("driver", NO, what, "install NVIDIA's driver")
    if not text:
        return Finding("driver", DOUBT, f"loaded ({version or 'version unknown'}), says no more")
    if "Open Kernel Module" in text:
        return Finding("driver", OK, f"{version}, open kernel modules")
    # Before 2.17.5 nvidia-fs took the symbols from proprietary modules too: if it runs, it runs.
    what = f"{version}, proprietary kernel modules: nvidia-fs from 2.17.5 on cannot use them"
    state = NOTE if _loaded(tree, "nvidia-fs") else NO
    return Finding("driver", state, what, "install the same driver with open kernel modules")


def check_iommu(tree: Tree) -> Finding:
    """Return whether an IOMMU stands between the drive and the GPU."""
    words = [word for word in tree.text("/proc/cmdline").split() if "iommu" in word]
    asked = "kernel command line: " + (" ".join(words) or "nothing about iommu")
    kinds = {file.read_text().strip() for file in tree.glob("/sys/kernel/iommu_groups/*/type")}
    active = bool(tree.glob("/sys/class/iommu/*")) or bool(kinds)
    if not active:
        return Finding("iommu", OK, f"none is active; {asked}")
    if kinds and kinds <= {"identity"} or "iommu=pt" in words:
        return Finding("iommu", OK, f"active, addresses passed through; {asked}")
    kind = ", ".join(sorted(kinds)) or "type unknown"
    what = f"active and translating addresses ({kind}); {asked}"
    return Finding("iommu", DOUBT, what, "add iommu=off, or iommu=pt where it must stay, and boot")


def check_library(tree: Tree, environ: dict[str, str]) -> Finding:
    """Return where libcufile is."""
    folders = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders += [
        "/usr/local/cuda*/lib64",
        "/usr/local/cuda*/targets/*/lib",
        "/usr/lib/*-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        f"{sys.prefix}/lib/python3*/site-packages/nvidia/*/lib",
    ]
    found = [path for folder in folders for path in tree.glob(f"{folder}/libcufile.so*")]
    if found:
        return Finding("libcufile", OK, str(found[0])[len(tree.root) :])
    advice = "run this inside the container or Python environment that brings it"
    return Finding("libcufile", DOUBT, "not found on this server", advice)


def without_comments(text: str) -> str:
    """Return JSON without the // and /* */ comments that cufile.json is shipped with."""
    parts = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
    return parts.sub(lambda part: part.group() if part.group().startswith('"') else " ", text)


def check_configuration(tree: Tree, environ: dict[str, str]) -> tuple[list[Finding], dict]:
    """Return what cufile.json and the environment ask for, and cufile.json's content."""
    findings = []
    path = environ.get("CUFILE_ENV_PATH_JSON", "/etc/cufile.json")
    config: dict[str, Any] = {}
    text = tree.text(path)
    if not text:
        findings.append(Finding("cufile.json", NOTE, f"{path} not there or empty: defaults hold"))
    else:
        try:
            config = json.loads(without_comments(text))
        except ValueError as error:
            what = f"{path} is not JSON: {error}"
            findings.append(Finding("cufile.json", DOUBT, what, "correct it"))
    properties = config.get("properties") or {}
    allowed = properties.get("allow_compat_mode", True)
    if text and config:
        falls = "falls back" if allowed else "fails"
        what = f"{path}: allow_compat_mode {str(allowed).lower()}: where native is impossible it "
        findings.append(Finding("cufile.json", OK, what + falls))
    forced = [
        f"{name}={environ[name]}"
        for name in ("CUFILE_FORCE_COMPAT_MODE", "KVIKIO_COMPAT_MODE")
        if environ.get(name, "").lower() in ("on", "true", "yes", "1")
    ]
    if properties.get("force_compat_mode"):
        forced.append(f"force_compat_mode in {path}")
    if forced:
        findings.append(Finding("forced", NO, ", ".join(forced), "unset it"))
    return findings, config


def check_nvidia_fs(tree: Tree, release: str) -> tuple[Finding, dict[str, str]]:
    """Return whether nvidia-fs runs, and which storage drivers announced themselves to it."""
    text = tree.text("/proc/driver/nvidia-fs/version")
    if text or _loaded(tree, "nvidia-fs"):
        version = _version(tree.text("/sys/module/nvidia_fs/version")) or _version(text)
        lines = tree.text("/proc/driver/nvidia-fs/modules").splitlines()
        drivers = dict(line.replace(" ", "").split(":", 1) for line in lines if ":" in line)
        names = ", ".join(sorted(drivers)) or "none"
        nodes = tree.glob("/dev/nvidia-fs*")
        if not nodes:
            what = f"{version} loaded, but there is no /dev/nvidia-fs*"
            return Finding("nvidia-fs", NO, what, "hand the devices to the container"), drivers
        if not os.access(nodes[0], os.R_OK | os.W_OK):
            what = f"{version} loaded, but {nodes[0].name} may not be opened by this user"
            return Finding("nvidia-fs", NO, what, "allow reading and writing /dev/nvidia-fs*"), {}
        return Finding("nvidia-fs", OK, f"{version} loaded; storage drivers: {names}"), drivers
    build = "build it with dkms"
    if _pair(release) >= PATCHED_KERNEL:
        build = "on this kernel look with patch_nvidia_fs.py first, then " + build
    modules = f"/lib/modules/{release}"
    folders = ("", "/*", "/updates/dkms", "/kernel/fs/nvidia-fs")
    built = [path for folder in folders for path in tree.glob(f"{modules}{folder}/nvidia-fs.ko*")]
    sources = tree.glob("/usr/src/nvidia-fs-*")
    if built or "nvidia-fs.ko" in tree.text(f"{modules}/modules.dep"):
        advice = "modprobe nvidia-fs; if it refuses, the kernel log says which symbol"
        return Finding("nvidia-fs", NO, f"built for {release} but not loaded", advice), {}
    if sources:
        what = f"{sources[-1].name} is installed as source but not built for {release}"
        return Finding("nvidia-fs", NO, what, build), {}
    what = "not loaded, not built, no source in /usr/src"
    return Finding("nvidia-fs", NO, what, f"install the package nvidia-fs-dkms; {build}"), {}


def check_p2pdma(tree: Tree, release: str, config: dict) -> Finding:
    """Return whether the kernel's own peer-to-peer path to local NVMe drives is set up."""
    if not (config.get("properties") or {}).get("use_pci_p2pdma"):
        return Finding("p2pdma", NOTE, "not asked for (use_pci_p2pdma in cufile.json)")
    lacks = []
    if _pair(release) < P2PDMA_KERNEL:
        lacks.append("a kernel from 6.2 on")
    if "RMForceStaticBar1=1" not in tree.text("/proc/driver/nvidia/params"):
        lacks.append("RMForceStaticBar1=1 in the driver's NVreg_RegistryDwords")
    if tree.text("/sys/module/nvme_core/parameters/multipath").strip() != "N":
        lacks.append("nvme_core.multipath=N")
    if lacks:
        return Finding("p2pdma", NOTE, "asked for, but lacks " + "; ".join(lacks))
    return Finding("p2pdma", OK, "set up for local NVMe drives")


def _find_mount(tree: Tree, folder: str) -> dict[str, str]:
    """Return the mount of a folder; of two on one place the later hides the earlier."""
    best: dict[str, str] = {}
    for line in tree.text("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(tail) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), fields[4])
        inside = point == "/" or folder == point or folder.startswith(point + "/")
        if inside and len(point) >= len(best.get("point", "")):
            options = fields[5] + "," + tail[2]
            best = {"point": point, "device": fields[2], "type": tail[0], "options": options}
    return best


def _look_at_device(node: Path, p2pdma: bool) -> tuple[str, str]:
    """Return whether all drives under a block device take part, and how they are called."""
    node = Path(os.path.realpath(node))
    if not node.is_dir():
        return DOUBT, f"{node.name}: nothing about it in /sys/dev/block"
    if (node / "partition").exists():
        node = node.parent
    name = node.name
    slaves = sorted((node / "slaves").iterdir()) if (node / "slaves").is_dir() else []
    if slaves:
        parts = [_look_at_device(slave, p2pdma) for slave in slaves]
        states = [state for state, _ in parts]
        text = f"{name} on {', '.join(part for _, part in parts)}"
        if NO in states:
            return NO, text
        kind = (node / "dm/uuid").read_text() if (node / "dm/uuid").exists() else ""
        level = (node / "md/level").read_text().strip() if (node / "md/level").exists() else ""
        if kind.startswith("CRYPT-"):
            return NO, f"{text}: encrypted, so every byte passes the CPU"
        if level == "raid0" and not p2pdma:
            return max(states, key=[OK, DOUBT].index), f"{text}: RAID 0"
        return DOUBT, f"{text}: {level or 'device mapper'} is not on the list of tried layers"
    if not name.startswith("nvme"):
        return NO, f"{name} is no NVMe drive"
    transport = node.parent / "transport"
    by = transport.read_text().strip() if transport.exists() else "pcie"
    if by not in ("pcie", "rdma") or (by == "rdma" and p2pdma):
        return NO, f"{name} is reached by {by}"
    return OK, f"NVMe drive {name}"


def check_folder(
    tree: Tree, folder: str, drivers: dict[str, str], p2pdma: bool, config: dict
) -> Finding:
    """Return whether files in a folder can be read natively by a machine that is set up for it."""
    mount = _find_mount(tree, folder)
    if not mount or not tree.path(folder).is_dir():
        return Finding(folder, DOUBT, "no such folder, or no mount for it in /proc/self/mountinfo")
    kind, text = mount["type"], f"{mount['type']} on {mount['point']}"
    if not os.access(tree.path(folder), os.R_OK):
        return Finding(folder, NO, f"{text}: this user may not read it")
    deny = config.get("denylist") or config.get("blacklist") or {}
    if kind in (deny.get("filesystems") or []) or mount["point"] in (deny.get("mounts") or []):
        return Finding(folder, NO, f"{text}: on the denylist of cufile.json")
    if kind in NETWORK:
        if kind.startswith("nfs") and "proto=rdma" not in mount["options"].split(","):
            return Finding(folder, NO, f"{text}: not over RDMA", "mount it with proto=rdma")
        if NETWORK[kind] not in drivers:
            what = f"{text}: its driver {NETWORK[kind]} has not announced itself to nvidia-fs"
            return Finding(folder, NO, what, "load nvidia-fs, and a client built for it")
        return Finding(folder, OK, text)
    if kind not in ("ext4", "xfs"):
        return Finding(folder, NO, f"{text}: no path to the GPU", "use xfs or ext4 on NVMe")
    node = tree.path("/sys/dev/block/" + mount["device"])
    by_module = "nvme" in drivers or "nvme_rdma" in drivers
    state, drive = _look_at_device(node, p2pdma and not by_module)
    text += f", {drive}"
    if state == NO:
        return Finding(folder, NO, text)
    if kind == "ext4":
        name = Path(os.path.realpath(node)).name
        modes = re.findall(r"data=(\w+)", tree.text(f"/proc/fs/ext4/{name}/options"))
        modes = modes or re.findall(r"data=(\w+)", mount["options"])
        if modes and modes[-1] != "ordered":
            what = f"{text}: data={modes[-1]}"
            return Finding(folder, NO, what, "mount it with data=ordered")
        text += "" if modes else ", journal mode unknown"
        state = state if modes else DOUBT
    if not by_module and not p2pdma:
        what = f"{text}: the NVMe driver has not announced itself to nvidia-fs"
        return Finding(folder, NO, what, "install the NVMe driver of DOCA or MLNX_OFED, or p2pdma")
    return Finding(folder, state, text)


def conclude(states: list[str]) -> str:
    """Return the verdict on findings: the worst decides."""
    return "compatibility" if NO in states else "unknown" if DOUBT in states else "native"


def check(tree: Tree, folders: list[str], environ: dict[str, str]) -> dict[str, Any]:
    """Return everything that was found.

    Returns
    -------
    ``verdict``, of the machine and all folders together; ``machine`` and ``folders``: lists of
    findings with ``check``, ``state``, ``what`` and ``advice``.
    """
    kernel, release = check_kernel(tree)
    settings, config = check_configuration(tree, environ)
    module, drivers = check_nvidia_fs(tree, release)
    p2pdma = check_p2pdma(tree, release, config)
    if p2pdma.state == OK and module.state == NO:
        module = module._replace(state=NOTE)
    machine = [kernel, check_driver(tree), module, p2pdma, check_iommu(tree)]
    machine += [check_library(tree, environ), *settings]
    if os.access(tree.path("/run/udev"), os.R_OK):
        machine.append(Finding("udev", OK, "/run/udev can be read"))
    else:
        what = "/run/udev cannot be read"
        machine.append(Finding("udev", NO, what, "mount it into the container"))
    places = [check_folder(tree, path, drivers, p2pdma.state == OK, config) for path in folders]
    return {
        "verdict": conclude([finding.state for finding in machine + places]),
        "machine": [finding._asdict() for finding in machine],
        "folders": [finding._asdict() for finding in places],
    }


def describe(report: dict[str, Any]) -> str:
    """Return a report as lines for a reader."""
    names = {
        "native": "native",
        "compatibility": "in compatibility mode (through host memory)",
        "unknown": "cannot be told from here",
    }
    lines = [f"GPUDirect Storage: {names[report['verdict']]}"]
    for title in ("machine", "folders"):
        if report[title]:
            lines += ["", title]
        for found in report[title]:
            lines.append(f"  {found['state']:5}  {found['check']}: {found['what']}")
            if found["advice"]:
                lines.append(f"         -> {found['advice']}")
    if not report["folders"]:
        lines += ["", "No folder was named: name those that hold data, their file systems count."]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", help="folders whose file systems are looked at too")
    parser.add_argument("--root", default="/", help="read /proc, /sys, /etc … of this folder")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    given = parser.parse_args(arguments)
    if not Path(given.root).is_dir():
        parser.error(f"--root {given.root}: no such folder")
    within = given.root.rstrip("/") != ""
    resolve = os.path.abspath if within else os.path.realpath
    folders = [resolve(folder) for folder in given.folders]
    report = check(Tree(given.root), folders, dict(os.environ))
    print(json.dumps(report, indent=1) if given.json else describe(report))
    return VERDICTS[report["verdict"]]


if __name__ == "__main__":
    sys.exit(main())
