"""A Slurm of one machine for tests: munged, slurmctld and slurmd of the installed packages, on ports of their own.

Jobs of its partition `urgent` take the place of those of `test`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
NUM_CPUS = 4
START_SECONDS = 60.0
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


def missing() -> str:
    """Return why there can be no Slurm here; empty if there can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"{', '.join(absent)} not installed: apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "slurmd starts jobs as root only"


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def site(folder: Path) -> Iterator[dict[str, str]]:
    """Run the daemons, and yield the environment in which `sbatch` and the others reach them.

    Raises:
        RuntimeError: the node did not become idle; the message has the daemons' last words.
    """
    host = socket.gethostname().partition(".")[0]
    conf, key = folder / "slurm.conf", folder / "munge.key"
    conf.write_text(
        _CONF.format(host=host, folder=folder, controller=_free_port(), daemon=_free_port(), cpus=NUM_CPUS)
    )
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    environment = {**os.environ, "SLURM_CONF": str(conf), "PATH": _path()}
    munge = [
        f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("pid-file", "log-file", "seed-file")
    ]
    commands = {
        "munged": ["--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}", *munge],
        "slurmctld": ["-D", "-f", str(conf)],
        "slurmd": ["-D", "-f", str(conf), "-N", host],
    }
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for name, words in commands.items():
            with (folder / f"{name}.log").open("wb") as log:
                daemons.append(
                    subprocess.Popen(
                        [name, *words], env=environment, stdout=log, stderr=log, start_new_session=True
                    )
                )
            if name == "munged":
                _until(lambda: (folder / "munge.socket").exists(), folder)
        _until(lambda: _state(environment) == "idle", folder)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _state(environment: dict[str, str]) -> str:
    words = ["sinfo", "--noheader", "--format=%T"]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout.strip()


def _until(true: object, folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not true():  # type: ignore[operator]
        if time.monotonic() > deadline:
            words = {path.name: path.read_text(errors="replace")[-600:] for path in folder.glob("*.log")}
            raise RuntimeError(f"Slurm did not start within {START_SECONDS:.0f} s: {words}")
        time.sleep(0.2)
