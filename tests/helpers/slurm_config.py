"""Slurm's configuration for tests: what makes it quick to notice, and small enough for one machine."""

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from pretrain.process.local import free_port

_CPUS, _GPUS, _MEGABYTES = 4, 2, 4000
_NULL = (1, 3)  # /dev/null's numbers
_CONFIG = """
ClusterName=tests
SlurmctldHost={host}({controller})
SlurmctldPort={port}
SlurmUser=root
FirstJobId={first_job}
AuthInfo=socket={directory}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType={tracking}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={directory}/jobcomp.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
PropagateResourceLimits=NONE
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
SlurmdParameters=config_overrides
SlurmdTimeout=10
MessageTimeout=5
KillWait=10
MinJobAge=3600
OverTimeLimit=0
GresTypes=gpu
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=15 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


@dataclass(frozen=True)
class Host:
    """Where a node is: `enter` is what a command is preceded by to run there."""

    node: str
    name: str
    address: str
    port: int
    enter: tuple[str, ...] = ()


def local_hosts(count: int) -> list[Host]:
    """Nodes n0, n1, ... of this machine, whose own names no one resolves."""
    return [Host(f"n{number}", socket.gethostname().split(".")[0], "127.0.0.1", free_port()) for number in range(count)]


def write_config(directory: Path, hosts: list[Host], controller: str, first_job: int) -> dict[str, str]:
    """Fills `directory`, and returns the variable that tells Slurm's commands of it."""
    for name in ("state", "jobs", *(f"spool-{host.node}" for host in hosts)):
        (directory / name).mkdir()
    directory.chmod(0o755)  # munge's clients go through it
    key = directory / "munge.key-file"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    for number in range(_GPUS):
        os.mknod(directory / f"gpu{number}", 0o20666, os.makedev(*_NULL))
    freezer = os.access("/sys/fs/cgroup/freezer", os.W_OK)
    text = _CONFIG.format(
        host=socket.gethostname().split(".")[0],
        controller=controller,
        port=free_port(),
        first_job=first_job,
        directory=directory,
        tracking="proctrack/cgroup" if freezer else "proctrack/linuxproc",
    )
    for host in hosts:
        text += (
            f"NodeName={host.node} NodeHostname={host.name} NodeAddr={host.address} Port={host.port} CPUs={_CPUS} "
            f"RealMemory={_MEGABYTES} Gres=gpu:{_GPUS}\n"
        )
    (directory / "slurm.conf").write_text(text)
    (directory / "cgroup.conf").write_text(
        "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nConstrainCores=no\nConstrainRAMSpace=no\n"
    )
    gpus = "".join(f"NodeName={host.node} Name=gpu File={directory}/gpu[0-{_GPUS - 1}]\n" for host in hosts)
    (directory / "gres.conf").write_text(gpus)
    return {"SLURM_CONF": str(directory / "slurm.conf")}
