"""Options that `launch kubernetes` and `launch skypilot` share."""

import argparse
import re

from launch.checks import check
from launch.manifest import NodesRun
from launch.slurm.jobs import with_preflight
from pretrain.commands.arguments import Parser, at_least_zero, count
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig


def add_nodes_options(parser: Parser) -> None:
    """Adds the options that `run_of` reads, and those of every machine."""
    parser.add_config()
    parser.add_argument("--nodes", type=count, required=True, help="Number of nodes.")
    parser.add_argument(
        "--ranks-per-node", type=count, metavar="N", help="Ranks per node (default: one per GPU; without GPUs, 1)."
    )
    parser.add_argument("--cpus", metavar="N", help="CPUs per node.")
    parser.add_argument("--memory", metavar="SIZE", help="Memory per node.")
    parser.add_argument(
        "--env",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Environment variable of all ranks. Repeatable.",
    )
    parser.add_argument(
        "--restarts",
        type=at_least_zero,
        default=3,
        metavar="N",
        help="Give up after N restarts without a new checkpoint (default 3).",
    )


def run_of(options: argparse.Namespace, gpus: int, command_line: str) -> NodesRun:
    """The run that the options describe. Its data is not looked for, as only the nodes may see it. Raises ConfigError
    for a layout that is not legal on so many ranks."""
    config = with_preflight(load(RunConfig, options.config, options.overrides))
    ranks = options.ranks_per_node or max(1, gpus)
    check(config, options.nodes * ranks, None)
    return NodesRun(
        config=config, nodes=options.nodes, ranks=ranks, restarts=options.restarts, command_line=command_line
    )


def volume(text: str) -> tuple[str, str]:
    """A volume and the absolute path that it is mounted at."""
    name, colon, path = text.partition(":")
    if not colon or re.fullmatch("[a-z0-9][a-z0-9.-]*", name) is None or not path.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:DIR, such as shared:/shared")
    return name, path


def pair(text: str) -> tuple[str, str]:
    """A name and a value."""
    name, equals, value = text.partition("=")
    if not equals or re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
