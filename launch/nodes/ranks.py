"""Ranks of one node for one start: `python -m launch.nodes.ranks --directory D --job J --index I ... -- COMMAND`.

Node 0 waits until all other nodes are there and publishes the start; they wait for it.
"""

import argparse
import sys
import time
from pathlib import Path

from data_pipeline.errors import ExitStatus
from launch.nodes.starts import NodeStart, Starts
from pretrain.process import local
from pretrain.process.signals import StopRequest

_POLL_S, _NOTE_S, _SAY_S = 1.0, 5.0, 60.0
"""Seconds between two looks at the files, two notes, and two lines that say what it is waiting for."""


def main(argv: list[str]) -> int:
    """Waits for a start and runs `pretrain COMMAND` as this node's ranks. Returns their exit status; that of node 0, if
    that has ended; 75 if a stop is requested before the start."""
    stop = StopRequest()
    parser = argparse.ArgumentParser(prog="python -m launch.nodes.ranks", allow_abbrev=False)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--address", required=True)
    for name in ("--index", "--nodes", "--ranks", "--port"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    starts = Starts(options.directory, options.job)
    found = _lead(starts, options, stop) if options.index == 0 else _follow(starts, options.index, stop)
    if not isinstance(found, NodeStart):
        return found
    node = local.NodeOfRanks(
        options.index, options.nodes, found.address, found.port, meeting=f"{found.job}.{found.number}"
    )
    return local.start(options.ranks, options.command, stop, node)


def _lead(starts: Starts, options: argparse.Namespace, stop: StopRequest) -> NodeStart | int:
    newest, said = starts.newest(), 0.0
    after = newest.number if newest is not None else 0
    while missing := starts.missing(options.nodes, after):
        if stop.requested:
            return ExitStatus.STOPPED
        if time.monotonic() - said > _SAY_S:
            said = time.monotonic()
            print(f"launch: waiting for nodes {', '.join(map(str, missing))} of {options.nodes}", file=sys.stderr)
        time.sleep(_POLL_S)
    return starts.publish(after + 1, options.address, options.port)


def _follow(starts: Starts, index: int, stop: StopRequest) -> NodeStart | int:
    joined, noted = starts.joined(index), 0.0
    while True:
        if stop.requested:
            return ExitStatus.STOPPED
        if (status := starts.ending()) is not None:
            return status
        start = starts.newest()
        if start is not None and start.number > joined:
            starts.join(index, start.number)
            return start
        if time.monotonic() - noted > _NOTE_S:
            noted = time.monotonic()
            starts.wait(index, joined)
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
