"""Variables that srun sets for its tasks: how many are on a node, and where they rendezvous.

Slurm writes names of nodes and numbers of tasks in a short form: `n[0-3,7]` is n0 n1 n2 n3 n7, and `4(x2),1` is 4, 4
and 1 tasks (https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES).
"""

import re
import socket
import subprocess
from itertools import product

from pretrain.errors import ConfigError

_ITEM = re.compile(r"(?:[^\[\],\s]|\[[0-9,-]+\])+")
_BRACKET = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_MOST_NODES = 1_000_000
_FIRST_PORT, _PORTS, _STEP_APART = 15_000, 17_000, 4_001  # below the ports that Linux gives to connections
_ANSWER_S = 30.0


def hosts(nodes: str) -> list[str]:
    """Names of the nodes in a list such as `rack[1-2]n[01-16],login`, in Slurm's order. Raises ConfigError for text
    that is no such list."""
    items = _ITEM.findall(nodes)
    if not items or ",".join(items) != nodes:
        raise ConfigError(f"'{nodes[:80]}' is no list of nodes as Slurm writes it, such as n[0-3,7]")
    return [host for item in items for host in _expand(item)]


def tasks_on_node(counts: str, node: int, tasks: int) -> int:
    """Number of tasks on the `node`-th node (from 0), by a list such as `4(x2),1`. Raises ConfigError for text that is
    no such list, or whose sum is not `tasks`."""
    total, on_node = 0, 0
    start = 0  # the number of the first node that an item is about
    for item in counts.split(","):
        match = _COUNT.fullmatch(item)
        if match is None:
            raise ConfigError(f"'{counts[:80]}' does not say how many tasks are on each node, as 4(x2),1 does")
        count, repeats = int(match[1]), int(match[2] or 1)
        if start <= node < start + repeats:
            on_node = count
        start, total = start + repeats, total + count * repeats
    if total != tasks or not on_node:
        raise ConfigError(
            f"srun has started {tasks} tasks, and '{counts[:80]}' tasks on its nodes don't make that many with some on "
            f"node {node}: call srun without --preserve-env"
        )
    return on_node


def meeting_port(job: int, step: int) -> int:
    """15000 + (job + 4001 x step) mod 17000: steps of the same number have different ports in any 17,000 jobs that
    follow each other, and so have the first 17,000 steps of a job."""
    return _FIRST_PORT + (job + _STEP_APART * step) % _PORTS


def meeting_address(nodes: str) -> str:
    """The first node's name, or its address in Slurm's configuration where the name does not resolve here. Raises
    ConfigError where that can't be had either."""
    first = hosts(nodes)[0]
    try:
        socket.getaddrinfo(first, None)
    except (OSError, UnicodeError):
        return _node_address(first)
    return first


def _node_address(node: str) -> str:
    problem = f"the name of rank 0's node, {node}, does not resolve here"
    cure = "export MASTER_ADDR with an address of it that all nodes reach"
    try:
        command = ["scontrol", "--oneliner", "show", "node", node]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else f"no answer within {_ANSWER_S:g} s"
        raise ConfigError(f"{problem}, and scontrol can't be asked for its address ({reason}): {cure}") from None
    address = re.search(r"\bNodeAddr=(\S+)", shown.stdout)
    if address is None:
        reason = (shown.stderr.strip() or "it does not say").splitlines()[0]
        raise ConfigError(f"{problem}, and scontrol does not know its address ({reason}): {cure}")
    if address[1] == node:
        raise ConfigError(f"{problem}, and Slurm knows no other address of it: {cure}")
    return address[1]


def _expand(item: str) -> list[str]:
    """Names in one item of a list: one for each choice of a number from each bracket."""
    choices = [_numbers(text) if index % 2 else [text] for index, text in enumerate(_BRACKET.split(item))]
    return ["".join(chosen) for chosen in product(*choices)]


def _numbers(ranges: str) -> list[str]:
    """Numbers in a bracket, such as 01 02 03 7 in `01-03,7`, each as wide as the first of its range."""
    expanded: list[str] = []
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text)
        if match is None or not 0 <= int(match[2] or match[1]) - int(match[1]) < _MOST_NODES:
            raise ConfigError(f"[{ranges[:80]}] are no numbers of nodes as Slurm writes them, such as [0-3,7]")
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1)
        expanded += [str(number).zfill(len(match[1])) for number in numbers]
    return expanded
