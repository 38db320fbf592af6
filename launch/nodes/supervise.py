"""Program of each node of a run that Kubernetes or SkyPilot starts:

    python -m launch.nodes.supervise --run RUN --job J --index I --nodes N --ranks R --address A -- train CONFIG

Node 0 has the supervisor and its policy. The other nodes run what it starts, and end as it does.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from data_pipeline.errors import ExitStatus
from launch.attempts import Attempt
from launch.local_placement import LocalPlacement
from launch.nodes.starts import Starts
from launch.policy import Decision
from launch.supervisor import SILENCE_S, Supervisor, say
from pretrain.errors import ConfigError, RunError, unwritable
from pretrain.run_dir.paths import RunDir

PORT = 29_400
"""Where rank 0 listens, as torchrun's rendezvous does."""


class NodePlacement(LocalPlacement):
    """This node's part of every attempt."""

    def __init__(self, job: str, nodes: int, program: Sequence[str]) -> None:
        self.job, self.nodes = job, f"{nodes} nodes"
        self._program = program

    def command(self, command: Sequence[str]) -> list[str]:
        return [*self._program, "--", *command]

    def exclude_nodes(self, nodes: Sequence[str]) -> str:
        return f"{', '.join(nodes)}: keep new pods off that machine (kubectl cordon) and delete this one"

    def requeue(self) -> str:
        return "this node ends with 75, for which it is started again"


def main(argv: list[str]) -> int:
    """Supervises COMMAND on this node. Returns its exit status: 75 to be started again, to resume."""
    parser = argparse.ArgumentParser(prog="python -m launch.nodes.supervise", allow_abbrev=False)
    parser.add_argument("--run", type=Path, required=True, help="Directory of the run, which all nodes see.")
    parser.add_argument("--job", required=True, help="Name that stays the same when nodes are started again.")
    parser.add_argument("--address", required=True, help="Address of node 0; only node 0 reads it.")
    parser.add_argument("--index", type=int, required=True, help="Number of this node, from 0.")
    parser.add_argument("--nodes", type=int, required=True, help="Number of nodes.")
    parser.add_argument("--ranks", type=int, required=True, help="Ranks per node.")
    parser.add_argument("--port", type=int, default=PORT, help=f"Port of rank 0 (default {PORT}).")
    parser.add_argument(
        "--restarts", type=int, default=3, help="Give up after N restarts without a new checkpoint (default 3)."
    )
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    directory = RunDir(options.run).launch
    starts = Starts(directory / "nodes", options.job)
    program = [sys.executable, "-m", "launch.nodes.ranks", "--directory", str(directory / "nodes")]
    for name in ("job", "address", "index", "nodes", "ranks", "port"):
        program += [f"--{name}", str(getattr(options, name))]
    records = directory if options.index == 0 else directory / "nodes" / f"node-{options.index}"
    supervisor = Supervisor(
        NodePlacement(options.job, options.nodes, program), records, options.run, options.restarts, SILENCE_S, say
    )
    if options.index:
        supervisor.policy = _as_node_0_decides(starts)
    try:
        status = supervisor.run(options.command)
        if options.index == 0 and status != ExitStatus.STOPPED:
            starts.end(status)
    except (ConfigError, RunError) as error:
        say(str(error))
        return error.exit_status
    except OSError as error:
        say(str(unwritable(directory, error)))
        return 1
    return status


def _as_node_0_decides(starts: Starts) -> Callable[[Sequence[Attempt], int], Decision]:
    """Policy of the other nodes."""

    def decide(attempts: Sequence[Attempt], restarts: int) -> Decision:
        if attempts[-1].ending == "stopped":
            return Decision("stopped", "stopped after saving")
        status = starts.ending()
        if status is not None:
            return Decision("over", f"node 0 has ended with {status}", status)
        return Decision("again", "waits for the next start by node 0")

    return decide


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
