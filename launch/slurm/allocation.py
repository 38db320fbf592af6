"""Attempts on the nodes of a Slurm job: each is a step of the job (`srun`)."""

import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from launch.checks import most_nodes
from launch.slurm import client
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import RunError
from pretrain.process.slurm import hosts

_END_S = 60.0
"""Seconds for processes of a step to end, and for Slurm to end a requeued job."""
_LOST_S = 5.0
"""Seconds for processes of a step that has lost a node."""
_SAVE_S, _AGAIN_S = 600.0, 10.0
"""Seconds for orphaned ranks to save and end, and between two signals to them."""
_CANCELLED = ("CANCELLED", "COMPLETING")


class Allocation:
    """Nodes of the job that this process is the script of. `ranks_per_node` is that of a training run that may resume
    without lost nodes; None: the command runs on all nodes. `config`: path of the config of a run that may resume on
    fewer nodes; None: it needs as many as it began with. `spares`: number of nodes that stay idle until others are
    lost."""

    def __init__(
        self, job: str, nodes: str, script: str, ranks_per_node: int | None, config: str | None, *, spares: int = 0
    ) -> None:
        self.job, self.nodes = job, nodes
        self._script, self._ranks_per_node, self._config, self._spares = script, ranks_per_node, config, spares
        self._is_step = False
        self._excluded: list[str] = []

    def command(self, command: Sequence[str]) -> list[str]:
        """Restricts a `command` that begins with srun to nodes that are up, if the run may lose some: to as many as it
        began with, the spare ones last; or if too few are left, to as many as it can use. The job's number of tasks
        includes lost nodes, and for Slurm the last step never ends on them, so the next overlaps. Raises RunError if
        the job could not be requeued for more nodes."""
        self._is_step = command[0] == "srun"
        if self._ranks_per_node is None or not self._is_step:
            return list(command)
        up, every = self._up(), hosts(self.nodes)
        if up == every and not self._spares:
            return list(command)
        few = min(len(up), self._used)
        if few < self._used and self._config is None:
            queued = self.exclude_nodes(()) if self._excluded else self.requeue()
            raise RunError(f"{few} of {self._used} nodes are left, and no spare one: {queued}")
        if few < self._used and self._config is not None:
            few = most_nodes(load(RunConfig, self._config), few, self._ranks_per_node)
        size = [f"--nodes={few}", f"--ntasks={few * self._ranks_per_node}", f"--nodelist={','.join(up[:few])}"]
        return ["srun", *size, *(["--overlap"] if up != every else []), *_without_nodes(command[1:])]

    def ask_to_stop(self, process: "subprocess.Popen[bytes]", number: int) -> None:
        """Sends SIGUSR1 to the ranks, not to srun, which on SIGTERM kills them at once."""
        if self._is_step:
            client.signal_steps(self.job, "USR1")
        else:
            process.send_signal(number)

    def clear(self) -> None:
        """Kills what is left of the step: ranks on nodes that srun has lost. For Slurm, ranks on a lost node never
        end."""
        lost = self._ranks_per_node is not None and len(client.usable(hosts(self.nodes))) < len(hosts(self.nodes))
        end = time.monotonic() + (_LOST_S if lost else _END_S)
        while client.steps(self.job) and time.monotonic() < end:
            client.signal_steps(self.job, "KILL")
            time.sleep(1.0)

    @property
    def _used(self) -> int:
        """Number of nodes that the run began with."""
        return len(hosts(self.nodes)) - self._spares

    def _up(self) -> list[str]:
        return [name for name in client.usable(hosts(self.nodes)) if name not in self._excluded]

    def adopt_orphaned_ranks(self, say: Callable[[str], None]) -> None:
        if not client.steps(self.job):
            return
        say("the previous supervisor is gone: the ranks that it started save and stop first")
        end = time.monotonic() + _SAVE_S
        while client.steps(self.job) and time.monotonic() < end:
            client.signal_steps(self.job, "USR1")
            time.sleep(_AGAIN_S)
        self.clear()

    def exclude_nodes(self, nodes: Sequence[str]) -> str:
        """Requeues the job without these nodes and those excluded before, unless there are spare ones or the run may
        resume on fewer, if any is left."""
        names = ", ".join(nodes)
        least = self._used if self._config is None else 1
        if (self._config is not None or self._spares) and len(set(self._up()) - set(nodes)) >= least:
            self._excluded += nodes
            return f"the run resumes without {names}"
        if len(allocated := hosts(self.nodes)) > 1 and set(allocated) <= set(nodes):
            return "all nodes failed the tests, so none is excluded"
        bad = list(dict.fromkeys([*self._excluded, *nodes]))  # those that spare nodes have replaced, too
        names = ", ".join(bad)
        before = client.job_facts(self.job).get("ExcNodeList", "(null)")
        refused = client.requeue(self.job)
        if refused is None:  # nodes can be excluded only from a pending job; a requeued one ends within half a minute
            excluded = [*(hosts(before) if before != "(null)" else ()), *bad]
            refused = client.exclude(self.job, list(dict.fromkeys(excluded)))
            if refused is None:
                time.sleep(_END_S)
                return f"job {self.job} is requeued without {names}"
        return f"{names} cannot be excluded ({refused})"

    def end_cancelled(self) -> None:
        """Cancels the job through Slurm, which then calls it CANCELLED, and this process ends as before."""
        with suppress(RunError):  # Slurm does not answer, and everything is saved
            client.cancel(self.job)

    def requeue(self) -> str:
        """Requeues the job under its id; if that is not allowed, submits it as a new job."""
        facts = client.job_facts(self.job)
        # Slurm also cancels a job that reaches its time limit before it has saved; that one may be requeued.
        if facts.get("JobState", "").startswith(_CANCELLED) and facts.get("Reason") != "TimeLimit":
            return f"job {self.job} was cancelled through Slurm: it is not requeued"
        refused = client.requeue(self.job)
        if refused is None:
            time.sleep(_END_S)  # within which Slurm ends this process
            return f"job {self.job} is requeued"
        task = self.job.partition("_")[2] or None
        after = client.submit(self._script, f"afterany:{self.job}", task)
        return f"job {self.job} cannot be requeued ({refused}): job {after} resumes after it"


def _without_nodes(options: Sequence[str]) -> list[str]:
    return [option for option in options if not option.startswith("--nodes=")]
