"""Tests of machines over real ranks: the table, and the node that computes wrongly or slowly."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pretrain.errors import RunError
from pretrain.preflight import machine
from pretrain.preflight.check import preflight
from pretrain.process.rank_location import RankLocation
from pretrain.run_dir.records import read_events
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import tiny_config

NODES = [RankLocation(f"node{rank}", 0, rank) for rank in range(3)]


def _preflight(run_dir: Path, asked: str, fault: str) -> tuple[dict[str, Any] | None, list[str], str | None]:
    rank = dist.get_rank()
    if fault == "wrong" and rank == 1:
        plain = torch.matmul

        def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            plain(a, b, out=out)
            out[3, 4] -= 1
            return out

        torch.matmul = matmul  # type: ignore[assignment]
    if fault == "slow":
        machine.product = lambda device: (1e9 if rank == 2 else 1e12, True)  # type: ignore[assignment]
        machine.memory = lambda: 1e9  # type: ignore[assignment]
        machine.disk = lambda path: machine.Disk(1e8, 1e8, 1e-3)  # type: ignore[assignment]
        real = time.time
        time.time = lambda: real() - (7 if rank == 0 else 0)  # type: ignore[assignment]
    config = tiny_config(run={"dir": str(run_dir)}, batch={"sequences": 6}, health={"preflight": asked})
    try:
        tested = preflight(config, NODES)
    except RunError as error:
        return None, [], str(error)
    return tested.facts, list(tested.warnings), None


def test_every_node_has_its_row(tmp_path: Path) -> None:
    ranks = run_ranks(3, _preflight, tmp_path / "run", "warn", "")
    facts, _, refusal = ranks[0]
    assert refusal is None
    assert ranks[1][0] == ranks[2][0] == facts, "the same on every rank"
    assert facts["all_reduce_s"] > 0
    assert facts["all_reduce_bytes_per_s"] > 0
    assert [row["node"] for row in facts["nodes"]] == ["node0", "node1", "node2"]
    for row in facts["nodes"]:
        numbers = [row[name] for name in row if name.endswith(("_flops", "_per_s", "_sync_s"))]
        assert len(numbers) == 6
        assert min(numbers) > 0
        assert abs(row["clock_s"]) < 1.0
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("asked", ["warn", "act"])
def test_a_node_that_computes_wrongly_is_refused(asked: str, tmp_path: Path) -> None:
    ranks = run_ranks(3, _preflight, tmp_path / "run", asked, "wrong")
    for _, _, refusal in ranks:
        assert refusal is not None
        assert "node1 computes wrong products of matrices (rank 1, local rank 0)" in refusal
    tested, failed = read_events(tmp_path / "run")
    assert (tested["event"], failed["event"]) == ("preflight", "failed")
    assert tested["refused"] == ["node1"]


def test_slow_nodes_and_odd_clocks_are_named_and_refused_if_asked(tmp_path: Path) -> None:
    (facts, warnings, refusal), *_ = run_ranks(3, _preflight, tmp_path / "warn", "warn", "slow")
    assert facts is not None
    assert facts["refused"] == []
    assert refusal is None
    assert "node2 is slow: matrix products, 0.001 TFLOP/s where 1 are usual" in warnings
    (behind,) = [
        found for one in warnings if (found := re.fullmatch(r"the clock of node0 is (\S+) s behind the others", one))
    ]
    assert float(behind[1]) == pytest.approx(7, abs=0.5), "7 s, less what an exchange takes"
    for _, _, refusal in run_ranks(3, _preflight, tmp_path / "act", "act", "slow"):
        assert refusal is not None
        assert refusal.startswith("preflight: node2 is slow: ")
        assert refusal.endswith("start without it, or set health.preflight=warn")
    assert read_events(tmp_path / "act")[0]["nodes"][2]["product_flops"] == 1e9
