"""Ranks by name, and the record of one that reports."""

import os
from pathlib import Path

import pytest

from pretrain.process.hang_report import Report
from pretrain.process.rank_location import format_ranks, this_rank
from pretrain.run_dir import heartbeat
from pretrain.run_dir.heartbeat import Heartbeat


def report(rank: int, waits_in: str | None, line: str) -> Report:
    return Report(
        rank=rank, host="node", pid=rank, step=12, activity="step 12", silent_s=300.0, since="", waits_in=waits_in,
        line=line, stack=f"where {rank} is\n",
    )  # fmt: skip


@pytest.mark.parametrize(("ranks", "words"), [([3], "rank 3"), ([0, 1, 2, 9], "ranks 0-2, 9"), ([1, 3], "ranks 1, 3")])
def test_ranks_are_named_shortly(ranks: list[int], words: str) -> None:
    assert format_ranks(ranks) == words


def test_a_node_has_slurm_s_name_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert this_rank().host == os.uname().nodename
    monkeypatch.setenv("SLURMD_NODENAME", "n17")
    assert (this_rank().host, this_rank().local_rank, this_rank().pid) == ("n17", 2, os.getpid())


def test_a_heartbeat_is_read_as_it_was_written(tmp_path: Path) -> None:

    run = tmp_path
    assert heartbeat.read(run) is None
    beat = Heartbeat(1.5, 7, "step 7", "node", 42)
    heartbeat.write(run, beat)
    assert heartbeat.read(run) == beat
    (run / "heartbeat.json").write_text('{"time": 1')
    assert heartbeat.read(run) is None
