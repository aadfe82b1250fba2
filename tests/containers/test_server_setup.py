import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "admin/check_gds.py"
CLEAN = {"PATH": os.environ["PATH"]}
NODE = "/sys/devices/pci0000:00/0000:00:05.0/nvme/nvme0"
DISK = "259:1"


def load():
    spec = importlib.util.spec_from_file_location("check_gds", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_gds = load()


class Server:
    """A made-up server's files."""

    def __init__(self, root: Path):
        self.root = root

    def write(self, name: str, text: str = "") -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def remove(self, name: str) -> None:
        (self.root / name.lstrip("/")).unlink()

    def link(self, name: str, target: str) -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        goal = self.root / target.lstrip("/")
        path.symlink_to(os.path.relpath(goal, path.parent))

    def mount(self, kind: str, device: str = DISK, options: str = "rw", point: str = "/data"):
        (self.root / point.lstrip("/").replace("\\040", " ")).mkdir(parents=True, exist_ok=True)
        root = "20 1 0:40 / / rw,relatime - overlay overlay rw\n"
        line = f"30 20 {device} / {point} rw,relatime shared:1 - {kind} source {options}\n"
        self.write("/proc/self/mountinfo", root + line)

    def check(self, *folders: str, **environ: str) -> dict:
        return check_gds.check(check_gds.Tree(str(self.root)), list(folders or ["/data"]), environ)

    def finding(self, name: str, *folders: str, **environ: str) -> dict:
        report = self.check(*folders, **environ)
        found = [one for one in report["machine"] + report["folders"] if one["check"] == name]
        assert len(found) == 1, report
        return found[0] | {"verdict": report["verdict"]}


@pytest.fixture
def server(tmp_path):
    """A server on which everything is as it should be."""
    server = Server(tmp_path)
    server.write("/proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
    server.write("/proc/cmdline", "root=/dev/sda1 ro quiet\n")
    server.write("/proc/modules", "nvidia 1 0 - Live 0x0\nnvidia_fs 1 0 - Live 0x0\n")
    server.write(
        "/proc/driver/nvidia/version", "NVRM: UNIX Open Kernel Module for x86_64  580.82.07\n"
    )
    server.write("/proc/driver/nvidia-fs/version", "version: 2.26\n")
    server.write("/proc/driver/nvidia-fs/modules", "nvme: 1\nlnet: 1\nrpcrdma: 1\n")
    server.write("/dev/nvidia-fs0")
    server.write("/run/udev/control")
    server.write("/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcufile.so.0")
    server.write(
        "/etc/cufile.json",
        '{\n // a comment\n "properties": {"allow_compat_mode": true, /* and */ "x": "//no"}\n}\n',
    )
    server.write(f"{NODE}/transport", "pcie\n")
    server.write(f"{NODE}/nvme0n1/nvme0n1p1/partition", "1\n")
    server.link(f"/sys/dev/block/{DISK}", f"{NODE}/nvme0n1/nvme0n1p1")
    server.write("/proc/fs/ext4/nvme0n1p1/options", "rw\ndata=ordered\n")
    server.mount("ext4")
    return server


def test_a_server_that_is_set_up_reads_natively(server):
    report = server.check()
    assert report["verdict"] == "native", report
    assert all(one["state"] in ("ok", "note") for one in report["machine"] + report["folders"])
    assert server.finding("driver")["what"].startswith("580.82.07")
    assert "2.26" in server.finding("nvidia-fs")["what"]
    assert "allow_compat_mode true" in server.finding("cufile.json")["what"]
    assert "nvme0n1" in server.finding("/data")["what"]


def test_missing_parts_are_named_with_a_remedy(server):
    server.write("/proc/modules", "nvidia 1 0 - Live 0x0\n")
    for name in ("version", "modules"):
        server.remove(f"/proc/driver/nvidia-fs/{name}")
    found = server.finding("nvidia-fs")
    assert (found["state"], found["verdict"]) == ("no", "compatibility")
    assert "install the package" in found["advice"] and "patch" not in found["advice"]
    server.write("/usr/src/nvidia-fs-2.28.4/dkms.conf")
    assert "nvidia-fs-2.28.4" in server.finding("nvidia-fs")["what"]
    server.write("/proc/sys/kernel/osrelease", "7.1.2-generic\n")
    assert "patch_nvidia_fs.py" in server.finding("nvidia-fs")["advice"]
    server.write("/lib/modules/7.1.2-generic/updates/dkms/nvidia-fs.ko.zst")
    assert "modprobe" in server.finding("nvidia-fs")["advice"]


@pytest.mark.parametrize(
    ("name", "text", "check", "verdict", "word"),
    [
        ("/proc/sys/kernel/osrelease", "4.4.0-1\n", "kernel", "compatibility", "4.15"),
        ("/proc/sys/kernel/osrelease", "", "kernel", "unknown", "osrelease"),
        ("/sys/class/iommu/dmar0/x", "", "iommu", "unknown", "translating"),
        ("/sys/kernel/iommu_groups/0/type", "DMA-FQ\n", "iommu", "unknown", "DMA-FQ"),
        ("/sys/kernel/iommu_groups/0/type", "identity\n", "iommu", "native", "passed through"),
        ("/etc/cufile.json", "{broken", "cufile.json", "unknown", "not JSON"),
        (
            "/etc/cufile.json",
            '{"properties": {"allow_compat_mode": false}}',
            "cufile.json",
            "native",
            "it fails",
        ),
        (
            "/etc/cufile.json",
            '{"denylist": {"filesystems": ["ext4"]}}',
            "/data",
            "compatibility",
            "denylist",
        ),
        ("/proc/fs/ext4/nvme0n1p1/options", "data=journal\n", "/data", "compatibility", "journal"),
        ("/proc/fs/ext4/nvme0n1p1/options", "rw\n", "/data", "unknown", "journal mode unknown"),
        (f"{NODE}/transport", "tcp\n", "/data", "compatibility", "tcp"),
        ("/proc/driver/nvidia-fs/modules", "lnet: 1\n", "/data", "compatibility", "announced"),
    ],
)
def test_one_thing_changed_changes_the_verdict(server, name, text, check, verdict, word):
    server.write(name, text)
    found = server.finding(check)
    assert found["verdict"] == verdict, found
    assert word in found["what"]


def test_proprietary_modules_matter_only_to_a_module_not_yet_loaded(server):
    server.write("/proc/driver/nvidia/version", "NVRM: UNIX x86_64 Kernel Module  535.1.2\n")
    assert server.finding("driver")["state"] == "note"
    server.write("/proc/modules", "nvidia 1 0 - Live 0x0\n")
    assert server.finding("driver")["state"] == "no"
    server.write("/proc/modules", "")
    server.remove("/proc/driver/nvidia/version")
    assert "not loaded" in server.finding("driver")["what"]


@pytest.mark.parametrize("gone", ["/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcufile.so.0"])
def test_a_library_elsewhere_leaves_it_open(server, gone):
    server.remove(gone)
    assert server.finding("libcufile")["verdict"] == "unknown"
    server.write("/opt/lib/libcufile.so")
    found = server.finding("libcufile", LD_LIBRARY_PATH="/nowhere:/opt/lib")
    assert (found["verdict"], found["what"]) == ("native", "/opt/lib/libcufile.so")


def test_devices_udev_and_the_environment(server):
    found = server.finding("forced", KVIKIO_COMPAT_MODE="ON")
    assert (found["verdict"], found["what"]) == ("compatibility", "KVIKIO_COMPAT_MODE=ON")
    assert server.check(KVIKIO_COMPAT_MODE="AUTO")["verdict"] == "native"
    server.write("/opt/my.json", '{"properties": {"force_compat_mode": true}}')
    found = server.finding("forced", CUFILE_ENV_PATH_JSON="/opt/my.json")
    assert "/opt/my.json" in found["what"] and found["verdict"] == "compatibility"
    server.remove("/dev/nvidia-fs0")
    assert "/dev/nvidia-fs" in server.finding("nvidia-fs")["what"]
    assert server.check()["verdict"] == "compatibility"
    server.write("/dev/nvidia-fs0")
    server.remove("/run/udev/control")
    (server.root / "run/udev").rmdir()
    assert server.finding("udev")["verdict"] == "compatibility"


@pytest.mark.parametrize(
    ("kind", "options", "verdict"),
    [
        ("xfs", "rw", "native"),
        ("lustre", "rw", "native"),
        ("nfs4", "rw,proto=rdma", "native"),
        ("nfs4", "rw,proto=tcp", "compatibility"),
        ("beegfs", "rw", "compatibility"),
        ("zfs", "rw", "compatibility"),
        ("tmpfs", "rw", "compatibility"),
    ],
)
def test_file_systems(server, kind, options, verdict):
    server.mount(kind, options=options)
    assert server.check()["verdict"] == verdict


def test_layers_over_drives(server):
    for number in (1, 2):
        server.write(f"/sys/devices/pci1/nvme/nvme{number}/transport", "pcie\n")
        server.write(f"/sys/devices/pci1/nvme/nvme{number}/nvme{number}n1/size", "1\n")
        server.link(
            f"/sys/devices/virtual/block/md0/slaves/nvme{number}n1",
            f"/sys/devices/pci1/nvme/nvme{number}/nvme{number}n1",
        )
    server.write("/sys/devices/virtual/block/md0/md/level", "raid0\n")
    server.link("/sys/dev/block/9:0", "/sys/devices/virtual/block/md0")
    server.mount("xfs", "9:0")
    found = server.finding("/data")
    assert found["verdict"] == "native" and "nvme1n1" in found["what"]
    assert "nvme2n1" in found["what"]
    server.write("/sys/devices/virtual/block/md0/md/level", "raid1\n")
    assert server.check()["verdict"] == "unknown"

    server.link("/sys/devices/virtual/block/dm-0/slaves/md0", "/sys/devices/virtual/block/md0")
    server.link("/sys/dev/block/253:0", "/sys/devices/virtual/block/dm-0")
    server.mount("xfs", "253:0")
    server.write("/sys/devices/virtual/block/dm-0/dm/uuid", "LVM-abc\n")
    assert server.check()["verdict"] == "unknown"
    server.write("/sys/devices/virtual/block/dm-0/dm/uuid", "CRYPT-LUKS2-abc\n")
    found = server.finding("/data")
    assert found["verdict"] == "compatibility" and "encrypted" in found["what"]

    server.write("/sys/devices/pci2/ata1/sda/size", "1\n")
    server.link("/sys/dev/block/8:0", "/sys/devices/pci2/ata1/sda")
    server.mount("xfs", "8:0")
    assert "no NVMe drive" in server.finding("/data")["what"]


def test_the_kernels_own_path_needs_no_module(server):
    server.write("/proc/modules", "nvidia 1 0 - Live 0x0\n")
    for name in ("version", "modules"):
        server.remove(f"/proc/driver/nvidia-fs/{name}")
    server.write("/etc/cufile.json", '{"properties": {"use_pci_p2pdma": true}}')
    found = server.finding("p2pdma")
    assert found["verdict"] == "compatibility"
    assert "RMForceStaticBar1=1" in found["what"] and "multipath" in found["what"]
    server.write("/proc/driver/nvidia/params", 'RegistryDwords: "RMForceStaticBar1=1;"\n')
    server.write("/sys/module/nvme_core/parameters/multipath", "N\n")
    assert server.finding("p2pdma")["verdict"] == "native"
    server.write("/proc/sys/kernel/osrelease", "6.1.0\n")
    assert "6.2" in server.finding("p2pdma")["what"]
    server.write("/proc/sys/kernel/osrelease", "6.8.0\n")
    server.mount("lustre")
    assert server.check()["verdict"] == "compatibility"


def test_mounts_over_each_other_and_names_with_blanks(server):
    (server.root / "database").mkdir()
    assert "overlay on /" in server.finding("/database", "/database")["what"]
    server.mount("tmpfs", point="/data\\040two")
    assert server.check("/data two")["verdict"] == "compatibility"
    text = (server.root / "proc/self/mountinfo").read_text()
    later = f"31 20 {DISK} / /data\\040two rw - xfs source rw\n"
    server.write("/proc/self/mountinfo", text + later)
    assert server.check("/data two")["verdict"] == "native"
    assert server.check("/missing")["verdict"] == "unknown"


@pytest.mark.parametrize(
    ("name", "text", "status"),
    [
        ("/proc/cmdline", "quiet\n", 0),
        ("/proc/driver/nvidia-fs/modules", "\n", 1),
        ("/sys/kernel/iommu_groups/0/type", "DMA\n", 2),
    ],
)
def test_command_line(server, name, text, status):
    server.write(name, text)
    command = [sys.executable, "-I", SCRIPT, "/data", "--root", server.root]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, env=CLEAN)
    assert done.returncode == status, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == ["native", "compatibility", "unknown"][status]
    lines = subprocess.run(command, capture_output=True, text=True, env=CLEAN).stdout
    assert lines.startswith("GPUDirect Storage: ")
    assert all(one["what"] in lines for one in report["machine"] + report["folders"])
