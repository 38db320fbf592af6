"""`pretrain launch slurm|build|local|status|logs|cancel`"""

from pretrain.commands.arguments import Parser


def main(argv: list[str]) -> int:
    """Supervised runs: restarted after failures, requeued after time limits."""
    parser = Parser(
        "launch",
        "Starts supervised runs, on a Slurm cluster or on this machine, restarts them from the newest checkpoint after "
        "each failure, and shows their status.",
        (
            "slurm gpt3/1.3b data.path=/data/corpus run.dir=/runs/big --nodes 4 --gpus-per-node 8 --time 1-00:00:00",
            "build data/gpt3-mix executor=ray --nodes 16 --cluster site.yaml",
            "local debug/gpt data.path=datasets/book run.dir=runs/book --nproc 4",
            "status runs/book",
            "logs runs/book --follow",
            "cancel runs/book",
        ),
    )
    verbs = ("slurm", "build", "local", "status", "logs", "cancel")
    parser.add_argument("verb", choices=verbs, help="What to do; `pretrain launch VERB --help` lists the options.")
    verb, rest = parser.parse(argv[:1]).verb, argv[1:]
    match verb:
        case "slurm":
            from pretrain.commands import launch_slurm

            return launch_slurm.main(rest)
        case "build":
            from pretrain.commands import launch_build

            return launch_build.main(rest)
        case "local":
            from pretrain.commands import launch_local

            return launch_local.main(rest)
        case _:
            from pretrain.commands import launch_run

            return launch_run.main(verb, rest)
