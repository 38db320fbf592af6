"""Options for the settings that a site requires of Slurm jobs: a file, and options that override it."""

import argparse
import re
from pathlib import Path

from launch.slurm.site import Site
from pretrain.commands.arguments import Parser
from pretrain.config.load import load, validate
from pretrain.errors import ConfigError

_OVERRIDABLE = [
    *("partition", "account", "qos", "constraint", "gpus_per_node", "ranks_per_node", "cpus_per_rank"),
    *("memory", "time", "setup", "container", "container_mounts", "python"),
]
"""Settings of a site that options may override."""
_METAVARS = {
    "partition": "NAME,...",
    "account": "NAME",
    "qos": "NAME",
    "constraint": "FEATURES",
    "memory": "SIZE",
    "time": "TIME",
    "setup": "FILE",
    "container": "IMAGE",
    "container_mounts": "FROM:TO,...",
    "python": "FILE",
}
"""Metavars of the settings that are not numbers."""
_CONDITIONS = ("any", "burstbuffer", "corr", "notok", "ok")


def add_site_options(parser: Parser) -> None:
    """Adds the options that `site_of` reads, and `--dependency`."""
    parser.add_argument(
        "--cluster",
        metavar="NAME_OR_FILE",
        help="Settings of the site, which the options below override: a YAML file, or NAME for cluster/NAME of the "
        "configs that come with pretrain. Without either, Slurm's own defaults apply.",
    )
    for name in _OVERRIDABLE:
        field = Site.model_fields[name]
        kind, metavar = (str, _METAVARS[name]) if name in _METAVARS else (int, "N")
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=field.description)
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Environment variable of all ranks. Repeatable.",
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="Further option for sbatch, written with =: --sbatch=--mail-type=END. Repeatable.",
    )
    parser.add_argument(
        "--srun",
        action="append",
        default=[],
        metavar="OPTION",
        help="Further option for srun, written with =: --srun=--mpi=pmix. Repeatable.",
    )
    parser.add_argument("--exclusive", action="store_true", help="Do not share nodes with other jobs.")
    parser.add_argument(
        "--dependency",
        type=_dependency,
        metavar="DEPENDENCY",
        help="Dependency of the first job in Slurm's syntax, such as afterok:17 or singleton.",
    )


def site_of(options: argparse.Namespace) -> Site:
    """Site of the file that `--cluster` names, overridden by options. Raises ConfigError."""
    site = load(Site, _located(options.cluster)) if options.cluster is not None else Site()
    tree = site.model_dump()
    tree |= {name: value for name in _OVERRIDABLE if (value := getattr(options, name)) is not None}
    for pair in options.env:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--env {pair} is not NAME=VALUE")
        tree["env"] = {**tree["env"], name: value}
    tree["sbatch"], tree["srun"] = (*site.sbatch, *options.sbatch), (*site.srun, *options.srun)
    if tree["setup"] is not None:
        tree["setup"] = str(_file(tree["setup"]))
    tree["exclusive"] = site.exclusive or options.exclusive
    return validate(Site, tree, "launch")


def _dependency(text: str) -> str:
    one = rf"singleton|after({'|'.join(_CONDITIONS)})?(:[0-9]+(_([0-9]+|\*))?(\+[0-9]+)?)+"
    if re.fullmatch(rf"({one})([,?]({one}))*", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not as Slurm writes it, such as afterok:17 or singleton")
    return text


def _file(setup: str) -> Path:
    """Absolute path of a shell file, as a shell looks for a bare name in PATH."""
    path = Path(setup).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"--setup {setup}: there is no such file: name a shell file that jobs can source")
    return path


def _located(cluster: str) -> str:
    return cluster if "/" in cluster or cluster.endswith(".yaml") else f"cluster/{cluster}"
