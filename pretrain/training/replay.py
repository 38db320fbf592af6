"""Steps of a run computed again from one of its checkpoints (`pretrain replay`), without writing anything."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pretrain.checkpoint import store
from pretrain.config.run_config import RunConfig
from pretrain.engine.collective import file_group, gather
from pretrain.errors import RunError
from pretrain.observe.log import RunLog
from pretrain.process.rank_location import this_rank
from pretrain.process.signals import StopRequest
from pretrain.run_dir.json_lines import finite
from pretrain.run_dir.paths import RunDir
from pretrain.training.build import build_run, join_ranks
from pretrain.training.loop import make_step
from pretrain.training.resume import continue_from, start_of_run
from pretrain.training.session import Session


def replay(
    config: RunConfig, checkpoints: Sequence[Path], step: int, stop: StopRequest
) -> tuple[int, dict[int, dict[str, Any]]]:
    """Computes the steps of the run of `config`, which is resolved, from the first valid one of `checkpoints` up to
    `step`; without any, from the run's beginning. Returns the step it started from, and `loss`, `grad_norm` and
    `data_hash` of each, as metrics.jsonl has them. Raises RunError on a request to stop. Collective."""
    run = build_run(config, join_ranks(config), gather(this_rank()))
    log, group = RunLog(config, run.layout, is_reporter=False), file_group(config.health.timeout_s)
    folder = RunDir(config.run.dir).checkpoints
    session = Session(run=run, log=log, stop=stop, group=group, checkpoints=folder)
    checkpoint = store.first_valid(list(checkpoints), log.warn, group) if checkpoints else start_of_run(session)
    state, found = continue_from(session, checkpoint), dict[int, dict[str, Any]]()
    start = state.step
    while state.step < step:
        started_s, segment = time.perf_counter(), state.segment
        state, batch = state.next_batch()
        result = make_step(session, state, segment, batch, started_s).result
        loss = result.loss_sum / result.token_count if result.token_count else None
        numbers = finite({"loss": loss, "grad_norm": result.grad_norm})
        found[state.step] = {**numbers, "data_hash": batch.data_hash}
        if run.engine.any(stop.requested):
            raise RunError(f"stopped after step {state.step:,}, before step {step:,}")
    return start, found
