"""A few seconds of tests of every node before a run is built on them.

tested = preflight(config, places)      # collective over all ranks; raises RunError, naming the node
tested.record(log)                      # as soon as there is a log
"""

import os
import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pretrain.checkpoint.lock import claim
from pretrain.config.run_config import RunConfig
from pretrain.engine import device
from pretrain.engine.collective import gather
from pretrain.errors import RunError
from pretrain.layout.layout import plan_layout
from pretrain.observe.log import RunLog
from pretrain.preflight import exchanges, machine
from pretrain.preflight.findings import Findings, Measured, find
from pretrain.preflight.machine import Disk
from pretrain.process import watchdog
from pretrain.process.rank_location import RankLocation


@dataclass(frozen=True)
class Preflight:
    """The same on every rank."""

    facts: dict[str, Any] | None
    """plain values: `nodes`, a row for each; names of those `refused`, on which the run does not start; and what
    all-reduce takes over all ranks. None: nothing was tested"""
    warnings: Sequence[str] = ()

    def record(self, log: RunLog) -> None:
        """As an event, and warnings."""
        if self.facts is not None:
            log.event("preflight", **self.facts)
        for sentence in self.warnings:
            log.warn(sentence)


def preflight(config: RunConfig, places: Sequence[RankLocation]) -> Preflight:
    """What `health.preflight` asks for; `places` of all ranks. Raises RunError where the run is not to start on them,
    which its events then say. Collective."""
    asked, run_dir = config.health.preflight, Path(config.run.dir)
    if asked == "off":
        return Preflight(None)
    watchdog.kick("testing the machines")
    facts, found = measure(run_dir, places)
    refused = found.wrong or (found.slow if asked == "act" else [])
    facts["refused"] = list(dict.fromkeys(named.node for named in refused))
    if not refused:
        return Preflight(facts, [named.said for named in found.slow])
    leads = dist.get_rank() == 0
    lock = claim(run_dir, leads)
    with RunLog(config, plan_layout(config, len(places)), leads) as log, lock or nullcontext():
        Preflight(facts).record(log)
        cure = "start without it" if found.wrong else "start without it, or set health.preflight=warn"
        raise RunError(f"preflight: {'; '.join(named.said for named in refused)}: {cure}")


def measure(run_dir: Path, places: Sequence[RankLocation]) -> tuple[dict[str, Any], Findings]:
    """The tests, and what they come to, on every rank. Collective."""
    here, rank = device.install(), dist.get_rank()
    leaders = list({place.host: at for at, place in reversed([*enumerate(places)])}.values())[::-1]
    dist.barrier()  # so that ranks of a node test it at the same time
    flops, right = machine.product(here)
    dist.barrier()
    memory = machine.memory()
    told = _disk(run_dir) if rank in leaders else None
    latency_s, bytes_per_s = exchanges.all_reduce(here)
    speeds = exchanges.links(leaders, here)
    link = speeds[leaders.index(rank)] if speeds and rank in leaders else None
    own = Measured(flops, right, memory, exchanges.clocks()[rank], link, told)
    found = find(gather(own), places)
    facts = {
        "device": torch.cuda.get_device_name() if here.type == "cuda" else "cpu",
        "all_reduce_s": latency_s,
        "all_reduce_bytes_per_s": bytes_per_s,
        "nodes": found.nodes,
    }
    return facts, found


def _disk(run_dir: Path) -> Disk | str:
    try:
        return machine.disk(run_dir / f"preflight-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    except OSError as error:
        return f"run.dir cannot be used from there ({error.strerror})"
