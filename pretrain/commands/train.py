"""`pretrain train CONFIG [key=value ...] [--nproc N]`"""

from contextlib import nullcontext
from pathlib import Path

from pretrain.commands.arguments import Parser
from pretrain.process.signals import StopRequest


def main(argv: list[str]) -> int:
    """Trains to the end, or until a signal asks to stop."""
    stop = StopRequest()  # before the slow imports
    parser = Parser(
        "train",
        "Trains a model to the end of the run. Where run.dir has a checkpoint, it goes on from the newest valid one.",
        (
            "debug/gpt data.path=datasets/book run.dir=runs/book --nproc 4",
            "gpt3/125m data.path=datasets/book parallel.tensor=2 --nproc 8",
        ),
    )
    parser.add_config("YAML file")
    parser.add_nproc("start this many local ranks (under torchrun or srun: leave out)")
    options = parser.parse(argv)
    from pretrain.commands.local_ranks import start_ranks, starts_ranks
    from pretrain.config.load import load
    from pretrain.config.run_config import RunConfig
    from pretrain.data.resolve import resolve

    config = resolve(load(RunConfig, options.config, options.overrides))
    if starts_ranks(config, options.nproc, trains=True):
        return start_ranks(options.nproc, ["train", *argv], stop)
    from pretrain.build import build_training
    from pretrain.checkpoint.collective import together
    from pretrain.checkpoint.lock import claim
    from pretrain.loop import train
    from pretrain.observe.log import RunLog

    run = build_training(config)
    reports, run_dir = run.engine.is_reporter, Path(config.run.dir)
    held = claim(run_dir, reports)
    renew = held.renew if held is not None else lambda: None
    log = together(f"writing to {run_dir}", lambda: RunLog(config, run.layout, reports, renew))
    with held or nullcontext(), log:
        return train(run, log, stop)
