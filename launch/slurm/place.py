"""The nodes of a Slurm job as a place for attempts: each is a step of the job (`srun`)."""

import subprocess
import time
from collections.abc import Callable, Sequence

from launch.checks import most_nodes
from launch.slurm import client
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.process.slurm import hosts

_PATIENCE_S = 60.0
"""for processes of a step to end, and for Slurm to end a job that is queued again"""
_LOST_S = 5.0
"""for those of a step that has lost a node"""
_SAVE_S, _AGAIN_S = 600.0, 10.0
"""for ranks that no one looks after to save and end; between asking them"""
_CANCELLED = ("CANCELLED", "COMPLETING")


class Allocation:
    """The job that this process is the script of. `ranks_per_node`: of a training run, which may then go on without
    nodes that were lost (`config`: the file of its config); None: the command takes the nodes as they are."""

    def __init__(self, job: str, nodes: str, script: str, ranks_per_node: int | None, config: str | None) -> None:
        self.job, self.nodes = job, nodes
        self._script, self._ranks_per_node, self._config = script, ranks_per_node, config
        self._is_step = False
        self._left_out: list[str] = []

    def command(self, command: Sequence[str]) -> list[str]:
        """A `command` that begins with srun gets the nodes that are up, where some may be lost. The job's number of
        tasks counts those, too; and to Slurm the step before does not end on them, so the next one has to overlap."""
        self._is_step = command[0] == "srun"
        if self._ranks_per_node is None or self._config is None or not self._is_step:
            return list(command)
        up = self._up()
        if up == hosts(self.nodes):
            return list(command)
        few = most_nodes(load(RunConfig, self._config), len(up), self._ranks_per_node)
        size = [f"--nodes={few}", f"--ntasks={few * self._ranks_per_node}", f"--nodelist={','.join(up[:few])}"]
        return ["srun", *size, "--overlap", *_without_nodes(command[1:])]

    def ask_to_stop(self, process: "subprocess.Popen[bytes]", number: int) -> None:
        """srun itself must not get it: SIGTERM has it kill the ranks at once."""
        if self._is_step:
            client.signal_steps(self.job, "USR1")
        else:
            process.send_signal(number)

    def clear(self) -> None:
        """Kills what is left of the step: ranks on nodes that srun lost sight of. Those of a node that Slurm has lost,
        too, never end for it."""
        lost = self._ranks_per_node is not None and len(client.usable(hosts(self.nodes))) < len(hosts(self.nodes))
        end = time.monotonic() + (_LOST_S if lost else _PATIENCE_S)
        while client.steps(self.job) and time.monotonic() < end:
            client.signal_steps(self.job, "KILL")
            time.sleep(1.0)

    def _up(self) -> list[str]:
        return [name for name in client.usable(hosts(self.nodes)) if name not in self._left_out]

    def take_over(self, say: Callable[[str], None]) -> None:
        if not client.steps(self.job):
            return
        say("a supervisor before this one is gone: the ranks that it started save and end first")
        end = time.monotonic() + _SAVE_S
        while client.steps(self.job) and time.monotonic() < end:
            client.signal_steps(self.job, "USR1")
            time.sleep(_AGAIN_S)
        self.clear()

    def leave_out(self, nodes: Sequence[str]) -> str:
        """The job is queued again for other nodes, unless it may go on with fewer."""
        named = ", ".join(nodes)
        if self._config is not None:
            self._left_out += nodes
            return f"it goes on without {named}"
        if len(here := hosts(self.nodes)) > 1 and set(here) <= set(nodes):
            return "all nodes were found bad, so it is not for one of them"
        before = client.job_facts(self.job).get("ExcNodeList", "(null)")
        refused = client.requeue(self.job)
        if refused is None:  # a job that runs can't be told; one that is queued again has ended in half a minute
            names = [*(hosts(before) if before != "(null)" else ()), *nodes]
            refused = client.exclude(self.job, list(dict.fromkeys(names)))
            if refused is None:
                time.sleep(_PATIENCE_S)
                return f"job {self.job} is queued again, without {named}"
        return f"{named} cannot be left out ({refused})"

    def go_on_later(self) -> str:
        """Queued again under the same number; or, where that is not allowed, as a new job."""
        facts = client.job_facts(self.job)
        # A job whose limit came before it had saved is ended by Slurm, too, but may be queued again.
        if facts.get("JobState", "").startswith(_CANCELLED) and facts.get("Reason") != "TimeLimit":
            return f"job {self.job} was ended through Slurm: it is not queued again from here"
        refused = client.requeue(self.job)
        if refused is None:
            time.sleep(_PATIENCE_S)  # in which Slurm ends this process
            return f"job {self.job} is queued again"
        task = self.job.partition("_")[2] or None
        after = client.submit(self._script, f"afterany:{self.job}", task)
        return f"job {self.job} cannot be queued again ({refused}): job {after} goes on after it"


def _without_nodes(options: Sequence[str]) -> list[str]:
    return [option for option in options if not option.startswith("--nodes=")]
