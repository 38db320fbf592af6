"""Tests of every node, for a few seconds, before a run is built on it.

tested = preflight(config, locations)   # collective over all ranks; raises RunError, naming the node
tested.record(log)                      # once the log is open
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
from pretrain.preflight.findings import Findings, NodeMeasurement, find
from pretrain.preflight.machine import Disk
from pretrain.process import watchdog
from pretrain.process.rank_location import RankLocation


@dataclass(frozen=True)
class Preflight:
    """Result of the tests, the same on every rank."""

    facts: dict[str, Any] | None
    """JSON values: a row for each of `nodes`, names of the nodes `refused`, and latency and bandwidth of all-reduce
    over all ranks. None: nothing was tested."""
    warnings: Sequence[str] = ()

    def record(self, log: RunLog) -> None:
        """Writes the facts as an event, and the warnings."""
        if self.facts is not None:
            log.event("preflight", **self.facts)
        for sentence in self.warnings:
            log.warn(sentence)


def preflight(config: RunConfig, locations: Sequence[RankLocation]) -> Preflight:
    """Runs the tests that `health.preflight` requests; `locations` are those of all ranks. Raises RunError, and records
    the result, if the run must not start on these nodes. Collective."""
    mode, run_dir = config.health.preflight, Path(config.run.dir)
    if mode == "off":
        return Preflight(None)
    watchdog.kick("testing the nodes")
    facts, found = measure(run_dir, locations)
    refused = found.wrong or (found.slow if mode == "act" else [])
    facts["refused"] = list(dict.fromkeys(finding.node for finding in refused))
    if not refused:
        return Preflight(facts, [finding.problem for finding in found.slow])
    leads = dist.get_rank() == 0
    lock = claim(config.run, leads)
    with RunLog(config, plan_layout(config, len(locations)), leads) as log, lock or nullcontext():
        Preflight(facts).record(log)
        cure = "start without it" if found.wrong else "start without it, or set health.preflight=warn"
        raise RunError(f"preflight: {'; '.join(finding.problem for finding in refused)}: {cure}")


def measure(run_dir: Path, locations: Sequence[RankLocation]) -> tuple[dict[str, Any], Findings]:
    """Runs all tests. Returns facts and findings on every rank. Collective."""
    here, rank = device.install(), dist.get_rank()
    leaders = list({location.host: at for at, location in reversed([*enumerate(locations)])}.values())[::-1]
    dist.barrier()  # so that ranks of a node test it at the same time
    flops, right = machine.product(here)
    dist.barrier()
    memory = machine.memory()
    disk = _disk(run_dir) if rank in leaders else None
    latency_s, bytes_per_s = exchanges.all_reduce(here)
    speeds = exchanges.links(leaders, here)
    link = speeds[leaders.index(rank)] if speeds and rank in leaders else None
    own = NodeMeasurement(
        product_flops=flops,
        product_right=right,
        memory_bytes_per_s=memory,
        clock_s=exchanges.clocks()[rank],
        link_bytes_per_s=link,
        disk=disk,
    )
    found = find(gather(own), locations)
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
