"""`pretrain train CONFIG [key=value ...] [--nproc N]`"""

import secrets
from contextlib import closing, nullcontext
from pathlib import Path

from pretrain.commands.arguments import Parser
from pretrain.process.rank_location import this_rank
from pretrain.process.ranks import global_rank
from pretrain.process.signals import StopRequest
from pretrain.process.streams import print_a_log
from pretrain.process.watchdog_thread import WatchdogThread, exit_if_hung


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
    print_a_log()
    from pretrain.checkpoint.run_dir import check_run_dir
    from pretrain.commands.local_ranks import start_ranks, starts_ranks
    from pretrain.config.load import load
    from pretrain.config.run_config import RunConfig
    from pretrain.data.resolve import resolve

    config = load(RunConfig, options.config, options.overrides)
    check_run_dir(Path(config.run.dir))
    config = resolve(config)
    if starts_ranks(config, options.nproc, trains=True):
        return start_ranks(options.nproc, ["train", *argv], stop)
    from pretrain.checkpoint.lock import claim
    from pretrain.engine.collective import gather, run_on_all_ranks
    from pretrain.observe.log import RunLog
    from pretrain.preflight.check import preflight
    from pretrain.training.build import build_training, meet
    from pretrain.training.loop import train

    run_dir, rank, health = Path(config.run.dir), global_rank(), config.health
    datasets = meet(config)
    said = gather((this_rank(), secrets.token_hex(4)))
    places, (_, attempt) = [place for place, _ in said], said[0]
    with WatchdogThread(run_dir, places, rank, attempt, health.hang_s, health.timeout_s) as watch:
        tested = preflight(config, places)
        run = build_training(config, datasets, places)
        reports = run.engine.is_reporter
        held = claim(run_dir, reports)
        watch.set_run_owned()

        def renew() -> None:
            exit_if_hung()  # stopped for so long, maybe, that a newer attempt writes here
            if held is not None:
                held.renew()

        log = run_on_all_ranks(f"writing to {run_dir}", lambda: RunLog(config, run.layout, reports, renew))
        if reports:
            watch.set_event_log(log.event)
        with held or nullcontext(), log, closing(watch):
            tested.record(log)
            return train(run, log, stop)
