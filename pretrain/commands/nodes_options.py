"""Options that `launch kubernetes` and `launch skypilot` share."""

import argparse
import sys
from collections.abc import Callable

from launch.checks import check
from launch.gpus import unknown_memory
from launch.manifest import NodesRun
from launch.slurm.jobs import with_preflight
from pretrain.commands.arguments import Parser, at_least_zero, count
from pretrain.commands.node_fields import variable
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.pointless_settings import pointless_settings
from pretrain.errors import ConfigError
from pretrain.plan.device import find_device

_MOST_NODES, _MOST_RESTARTS = 100_000, 2**31 - 1
"""Limits of Kubernetes: pods of an Indexed Job, and failures in 32 bits."""


def add_nodes_options(parser: Parser, cpus: Callable[[str], str], memory: Callable[[str], str]) -> None:
    """Adds the options that `run_of` reads, and those of every machine; `cpus` and `memory`: types of amounts."""
    parser.add_config()
    parser.add_argument("--nodes", type=count, required=True, help="Number of nodes.")
    parser.add_argument(
        "--ranks-per-node", type=count, metavar="N", help="Ranks per node (default: one per GPU; without GPUs, 1)."
    )
    parser.add_argument(
        "--hardware",
        metavar="NAME_OR_FILE",
        help="GPUs by name, such as h100, or a YAML file that describes them, as for pretrain plan; runs that do not "
        "fit are refused.",
    )
    parser.add_argument("--cpus", type=cpus, metavar="N", help="CPUs per node.")
    parser.add_argument("--memory", type=memory, metavar="SIZE", help="Memory per node.")
    parser.add_argument(
        "--env",
        type=variable,
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


def run_of(options: argparse.Namespace, gpus: int, hardware: str | None, command_line: str) -> NodesRun:
    """The run that the options describe, on nodes with `gpus` GPUs of a `hardware` that is known without --hardware, or
    not. Its data is not looked for, as only the nodes may see it. Raises ConfigError for numbers that no nodes take, a
    layout that is not legal on so many ranks, and GPUs that are too small or whose memory is not known."""
    config = with_preflight(load(RunConfig, options.config, options.overrides))
    ranks = options.ranks_per_node or max(1, gpus)
    for option, value, most in (
        ("--nodes", options.nodes, _MOST_NODES),
        ("--restarts", options.restarts, _MOST_RESTARTS),
    ):
        if value > most:
            raise ConfigError(f"{option} {value:,}: at most {most:,} are possible")
    if gpus and ranks > gpus:
        raise ConfigError(f"--ranks-per-node {ranks}: nodes have {gpus} GPUs, and each rank needs its own")
    if options.hardware is not None and not gpus:
        raise ConfigError(f"--hardware {options.hardware} names GPUs, and nodes have none: say how many they have")
    hardware = options.hardware or hardware
    if gpus and hardware is None:
        raise unknown_memory("(launch skypilot) an --accelerators of one size, such as H100:8 or A100-80GB:8")
    check(config, options.nodes * ranks, find_device(hardware).memory_gib if gpus and hardware is not None else None)
    for sentence in pointless_settings(config):  # no refusal: only the nodes know whether the run has begun
        print(f"warning: {sentence}", file=sys.stderr)
    return NodesRun(
        config=config, nodes=options.nodes, ranks=ranks, restarts=options.restarts, command_line=command_line
    )
