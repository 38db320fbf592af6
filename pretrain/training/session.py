"""A run on this rank from its first exchange with other ranks to its last: wired in the order in which it is needed.

with open_session(config, stop) as session: ...
"""

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from torch.distributed import ProcessGroup

from pretrain.checkpoint.lock import claim, lock_file
from pretrain.config.run_config import RunConfig
from pretrain.engine.collective import file_group, gather, run_on_all_ranks
from pretrain.finetune.sources import JudgedSplit
from pretrain.observe.log import RunLog
from pretrain.preflight.check import preflight
from pretrain.process.rank_location import this_rank
from pretrain.process.ranks import global_rank
from pretrain.process.signals import StopRequest
from pretrain.process.watchdog_thread import WatchdogThread, exit_if_hung
from pretrain.run_dir.paths import RunDir
from pretrain.training.build import TrainingRun, build_run, join_ranks


@dataclass(frozen=True, kw_only=True)
class Session:
    """The parts of a run on this rank: what was built, what it reports to, and who may stop it."""

    run: TrainingRun
    log: RunLog
    stop: StopRequest
    group: ProcessGroup
    """all ranks, for work around files, which may take long"""
    checkpoints: Path
    validation: dict[int, JudgedSplit] = field(default_factory=dict)
    """the newest answers to the validation rows, by the number of optimizer updates that led to the weights"""


@contextmanager
def open_session(config: RunConfig, stop: StopRequest) -> Iterator[Session]:
    """Joins the ranks, tests the machines, builds the run and claims `run.dir`, whose `config` is resolved. Collective.

    On leaving, the log is closed, and an error recorded in it.
    """
    run_dir, rank, health = Path(config.run.dir), global_rank(), config.health
    datasets = join_ranks(config)
    ranks = gather((this_rank(), secrets.token_hex(4)))
    locations, (_, attempt) = [location for location, _ in ranks], ranks[0]
    with WatchdogThread(run_dir, locations, rank, attempt, hang_s=health.hang_s, timeout_s=health.timeout_s) as watch:
        machines = preflight(config, locations)
        run = build_run(config, datasets, locations)
        is_reporter = run.engine.is_reporter
        lock = claim(config.run, is_reporter)
        watch.set_run_owned(lock_file(config.run))

        def renew_claim() -> None:
            exit_if_hung()  # this process may have been suspended for so long that a newer attempt writes here
            if lock is not None:
                lock.renew()

        log = run_on_all_ranks(f"writing to {run_dir}", lambda: RunLog(config, run.layout, is_reporter, renew_claim))
        if is_reporter:
            watch.set_event_log(log.event)
        with lock or nullcontext(), log, closing(watch):
            machines.record(log)
            group = file_group(health.timeout_s)
            yield Session(run=run, log=log, stop=stop, group=group, checkpoints=RunDir(run_dir).checkpoints)
