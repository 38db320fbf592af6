"""`pretrain launch slurm|build|local|status|logs|cancel`"""

from pretrain.commands.arguments import Parser


def main(argv: list[str]) -> int:
    """Runs that are looked after: started again after failures, queued again after time limits."""
    parser = Parser(
        "launch",
        "Starts runs that are looked after: on a Slurm cluster or here, again after each failure, from the newest "
        "checkpoint; and shows how they stand.",
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
    parser.add_argument("verb", choices=verbs, help="`pretrain launch VERB --help` shows what it takes")
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
