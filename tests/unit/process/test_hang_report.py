"""Where a thread is, read from its stack: the collective, and our own line that called it."""

import sys
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed import distributed_c10d

from pretrain.engine.groups import Groups
from pretrain.process.hang_report import thread_state, thread_states
from pretrain.process.hang_verdict import judge
from pretrain.process.rank_location import RankLocation
from tests.unit.process.test_rank_location import report


def frame_in(*calls: tuple[str, str, str]) -> FrameType:
    """The innermost frame of calls (path, function, line that calls on), outermost first."""
    found: list[FrameType] = []
    code: Any = lambda: found.append(sys._getframe(1))  # noqa: E731
    for path, function, line in reversed(calls):
        names: dict[str, Any] = {"inner": code}
        exec(compile(f"def {function}():\n    {line}", path, "exec"), names)
        code = names[function]
    code()
    return found[0]


OURS = f"{__file__.partition('/tests/')[0]}/pretrain/engine/groups.py"


def test_the_collective_is_the_one_that_our_line_called() -> None:
    place = thread_state(
        frame_in(
            (OURS, "largest", "inner()"),
            ("/lib/torch/distributed/c10d_logger.py", "wrapper", "inner()"),
            ("/lib/torch/distributed/distributed_c10d.py", "all_gather_object", "inner()"),
            ("/lib/torch/distributed/distributed_c10d.py", "all_gather", "inner()"),
        )
    )
    assert place.waits_in == "all_gather_object"
    assert place.line == "pretrain/engine/groups.py:2 in largest"
    assert "in all_gather\n" in place.stack


def test_of_several_at_once_the_library_s_function_is_named() -> None:
    place = thread_state(
        frame_in(
            (OURS, "step", "inner()"),
            ("/lib/megatron/core/distributed/buffer.py", "start_grad_sync", "inner()"),
            ("/lib/python3/contextlib.py", "__exit__", "inner()"),
            ("/lib/torch/distributed/distributed_c10d.py", "_coalescing_manager", "inner()"),
        )
    )
    assert place.waits_in == "start_grad_sync"


def test_elsewhere_there_is_none() -> None:
    place = thread_state(frame_in((OURS, "largest", "inner()"), ("/lib/numpy/core.py", "wait", "inner()")))
    assert place.waits_in is None
    assert place.line == "pretrain/engine/groups.py:2 in largest"


def test_the_names_are_torch_s(monkeypatch: Any) -> None:
    """A real call: from our own function through torch's wrapper into its file."""
    found = []

    def look(*arguments: object) -> None:
        found.append(thread_state(sys._getframe(1)))

    monkeypatch.setattr(distributed_c10d, "_check_single_tensor", look)
    monkeypatch.setattr(distributed_c10d, "_rank_not_in_group", lambda group: True)
    Groups.largest(SimpleNamespace(hosts=None), np.zeros(1))  # type: ignore[arg-type]
    assert dist.all_reduce.__module__ == "torch.distributed.distributed_c10d"
    assert found[0].waits_in == "all_reduce"
    assert found[0].line.startswith("pretrain/engine/group_exchanges.py:")
    assert found[0].line.endswith(" in largest")


def test_every_other_thread_is_there_by_name() -> None:
    found, names = thread_states()
    assert set(found) <= set(names)


def test_ranks_are_told_in_groups() -> None:
    locations = [RankLocation(f"node{rank // 4}", rank % 4, rank) for rank in range(8)]
    reports = {rank: report(rank, waits_in="all_reduce", line="a.py:1 in f") for rank in (0, 1, 2, 4)}
    reports[3] = report(3, waits_in="barrier", line="b.py:2 in g")
    reports[5] = report(5, waits_in=None, line="c.py:3 in h")
    told = judge(reports, locations, 300, "runs/a/hangs/x")
    assert "ranks 0-2, 4 wait in all_reduce, called from a.py:1 in f" in told.sentence
    assert "rank 3 waits in barrier, called from b.py:2 in g" in told.sentence
    assert "ranks 6-7 (host node1) gave no report" in told.sentence
    assert "rank 5 (host node1, pid 5) is at c.py:3 in h, step 12" in told.sentence
    assert "\n" not in told.sentence
    assert "the stack of rank 5, at c.py:3 in h:\n    where 5 is\n" in told.text
    assert "where 3 is" not in told.text, "of those that wait, the files have it"
    assert told.facts["elsewhere"] == [{"rank": 5, "host": "node1", "line": "c.py:3 in h", "activity": "step 12"}]


def test_where_all_are_at_the_same_line_it_is_told_once() -> None:
    """With GPUs, exchanges run in the background: ranks are seen where they need a result."""
    locations = [RankLocation("node0", rank, rank) for rank in range(4)]
    told = judge({rank: report(rank, waits_in=None, line="e.py:9 in step") for rank in range(4)}, locations, 300, "x")
    assert "ranks 0-3 (host node0) are at e.py:9 in step, step 12" in told.sentence
    assert told.text.count("the stack of rank") == 1
