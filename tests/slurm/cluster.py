"""A SLURM cluster of one node on this machine, with GPUs that are files.

Daemons, keys and configuration live in one folder; nothing of the machine's own configuration is
read or changed. Run as a program it installs what is missing and says whether it can work here:
status 0 with nothing printed, or 1 with the reason.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
PACKAGES = ("munge", "slurm-wlm")
PATIENCE_S = 30

CONFIG = """\
ClusterName=pretended
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
MinJobAge=86400
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=bf_interval=1,sched_interval=5,defer
GresTypes=gpu
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} Gres=gpu:{gpus}
PartitionName=main Nodes=node Default=YES MaxTime=2:00:00 State=UP
"""


class Cluster:
    """The daemons of a cluster; a context manager that ends them and removes their folder.

    Parameters
    ----------
    folder
        For everything; made anew. Its path must be short, for a socket lies in it.
    cpus
        More than the machine has is fine: nothing is bound to cores.
    memory_mib
        What jobs may ask for together.
    gpus
        How many the node claims to have.
    """

    def __init__(self, folder: Path, *, cpus: int, memory_mib: int, gpus: int) -> None:
        self.folder = folder
        self._size = {"cpus": cpus, "memory": memory_mib, "gpus": gpus}
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which SLURM's commands find this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self) -> Cluster:
        self.folder.mkdir(mode=0o755)
        try:
            self._configure()
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def ask(self, *command: str) -> str:
        """Return what one of SLURM's commands prints."""
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.stdout.strip()

    def _configure(self) -> None:
        folder, host = self.folder, socket.gethostname().split(".")[0]
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        ports = _free_ports(2)
        text = CONFIG.format(
            host=host, folder=folder, controller_port=ports[0], node_port=ports[1], **self._size
        )
        (folder / "slurm.conf").write_text(text, encoding="ascii")
        devices = []
        for index in range(self._size["gpus"]):
            device = folder / f"gpu{index}"
            # SLURM takes nothing but device files: this one is another /dev/null.
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            devices.append(f"NodeName=node Name=gpu File={device}\n")
        (folder / "gres.conf").write_text("".join(devices), encoding="ascii")
        # Read in place of the machine's: this node is watched by no control groups.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="ascii")

    def _start(self) -> None:
        folder, conf = self.folder, str(self.folder / "slurm.conf")
        self._spawn(
            *("munged", "--foreground", "--force", "--key-file", folder / "munge.key"),
            *("--socket", folder / "munge.socket", "--pid-file", folder / "munged.pid"),
            *("--seed-file", folder / "munge.seed", "--log-file", folder / "munged.log"),
        )
        self._wait("munged", lambda: (folder / "munge.socket").exists())
        self._spawn("slurmctld", "-D", "-c", "-f", conf)
        self._spawn("slurmd", "-D", "-c", "-f", conf, "-N", "node")
        self._wait("the node", lambda: self.ask("sinfo", "-h", "-o", "%t") == "idle")

    def _spawn(self, *command: str | Path) -> None:
        with (self.folder / f"{command[0]}.out").open("wb") as output:
            daemon = subprocess.Popen(
                list(map(str, command)),
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._daemons.append(daemon)

    def _wait(self, what: str, ready: object) -> None:
        assert callable(ready)
        end = time.monotonic() + PATIENCE_S
        while not ready():
            dead = [d.args for d in self._daemons if d.poll() is not None]
            if dead or time.monotonic() > end:
                logs = "\n".join(
                    f"{path.name}: {path.read_text(errors='replace')[-2000:]}"
                    for path in sorted(self.folder.glob("*.out"))
                )
                raise RuntimeError(f"{what} did not come up ({dead or 'in time'})\n{logs}")
            time.sleep(0.2)

    def _end(self) -> None:
        if len(self._daemons) == 3:
            # So that nothing that a job started outlives the cluster.
            self.ask("scancel", "--user", "root")
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_ports(number: int) -> list[int]:
    """Return ports that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def missing_programs() -> list[str]:
    """Return the programs of a cluster that are not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def prepare() -> str | None:
    """Install what a cluster needs; return why that cannot be, or None."""
    if not Path("/etc/debian_version").exists() or shutil.which("apt-get") is None:
        return "this is no Debian"
    if os.geteuid() != 0:
        return "this is not root"
    if not missing_programs():
        return None
    if not (_apt("install") or (_apt("update") and _apt("install"))):
        return f"apt-get could not install {' '.join(PACKAGES)}"
    return None


def _apt(action: str) -> bool:
    packages: Sequence[str] = PACKAGES if action == "install" else ()
    command = ["apt-get", "-qq", action, "--yes", "--no-install-recommends", *packages]
    policy = Path("/usr/sbin/policy-rc.d")
    # The packages would start daemons of their own.
    forbids = action == "install" and not policy.exists()
    if forbids:
        policy.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        policy.chmod(0o755)
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=False,
        )
    finally:
        if forbids:
            policy.unlink()
    return done.returncode == 0


if __name__ == "__main__":
    reason = prepare()
    if reason:
        print(reason)
    sys.exit(1 if reason else 0)
