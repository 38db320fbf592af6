"""`pretrain launch skypilot CONFIG [key=value ...] --nodes N ... [--submit FILE]`"""

import shlex
import subprocess
from pathlib import Path

from launch.gpus import hardware_called
from launch.skypilot import TaskSettings, render
from pretrain.commands.arguments import Parser, path
from pretrain.commands.node_fields import accelerators, image, infra, task_cpus, task_memory, volume
from pretrain.commands.nodes_options import add_nodes_options, run_of
from pretrain.commands.output import print_lines
from pretrain.errors import ConfigError, RunError


def main(argv: list[str]) -> int:
    """Prints the task file of a run, or submits it."""
    parser = _parser()
    options = parser.parse(argv)
    kind, _, number = (options.accelerators or ":0").partition(":")
    gpus = int(number or "1")
    if options.image is None and options.setup is None:
        raise ConfigError(
            "machines have no pretrain: name an image that has it with --image, or a --setup that installs it"
        )
    run = run_of(options, gpus, hardware_called(kind), f"pretrain launch skypilot {shlex.join(argv)}")
    task = TaskSettings(
        accelerators=options.accelerators,
        cpus=options.cpus,
        memory=options.memory,
        infra=options.infra,
        image=options.image,
        spot=options.spot,
        volumes=tuple(options.volume),
        env=dict(options.env),
        setup=_read(options.setup) if options.setup is not None else None,
    )
    text = render(run, task)
    if options.submit is None:
        print_lines(text.splitlines())
        return 0
    try:
        options.submit.write_text(text, encoding="utf-8")
        return subprocess.run(["sky", "jobs", "launch", str(options.submit)]).returncode  # which asks first
    except OSError as error:
        raise RunError(f"{options.submit} cannot be submitted ({error})") from None


def _parser() -> Parser:
    parser = Parser(
        "launch skypilot",
        "Prints a supervised training run as a task file of SkyPilot, or submits it as a managed job, which is "
        "recovered after preemption.",
        (
            "gpt3/1.3b data.path=/shared/corpus run.dir=/shared/runs/big --nodes 4 --accelerators H100:8 \\\n"
            "    --image registry.example/pretrain:cuda --volume shared:/shared > task.yaml",
        ),
    )
    add_nodes_options(parser, task_cpus, task_memory)
    parser.add_argument(
        "--accelerators",
        type=accelerators,
        metavar="KIND:N",
        help="GPUs per node, such as H100:8 (default: ranks on CPUs).",
    )
    parser.add_argument("--infra", type=infra, metavar="NAME", help="Cloud, region or context, such as aws/us-east-1.")
    parser.add_argument("--image", type=image, metavar="IMAGE", help="Container image with pretrain (`make image`).")
    parser.add_argument("--spot", action="store_true", help="Use machines that can be preempted.")
    parser.add_argument(
        "--volume",
        type=volume,
        action="append",
        default=[],
        metavar="CLAIM:DIR",
        help="Volume of SkyPilot and the path that it is mounted at; all nodes must see run.dir. Repeatable.",
    )
    parser.add_argument(
        "--setup", type=path, metavar="FILE", help="Shell file that installs pretrain where the image does not have it."
    )
    parser.add_argument("--submit", type=path, metavar="FILE", help="Write it to FILE and call `sky jobs launch FILE`.")
    return parser


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--setup {file} cannot be read ({error})") from None
