"""Ranks that disagree on an exchange are found, with the group and the position. Correct layouts agree."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from typing import Any

import pytest
import torch.distributed as dist

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import plan_layout
from pretrain.plan.device import find_device
from pretrain.rehearse.agreement import Log, compare
from pretrain.rehearse.exchange import Exchange, RankGroup
from pretrain.rehearse.rank import RankRehearsal, rehearse_rank
from pretrain.rehearse.run import rehearse

TENSOR = RankGroup(name="tensor", description="TENSOR", ranks=(0, 1))
DATA = RankGroup(name="data", description="DATA_PARALLEL", ranks=(0, 1))


def all_reduce(
    group: RankGroup = TENSOR, tensor: str = "bfloat16[4]", reduction: str = "sum", line: str = "a.py:1"
) -> Exchange:
    return Exchange(group=group, kind="allreduce", tensors=(tensor,), reduction=reduction, line=line)


def gather(group: RankGroup = TENSOR) -> Exchange:
    return Exchange(group=group, kind="allgather", tensors=("bfloat16[4]",), line="a.py:2")


def message(kind: str, peer: int, tensor: str = "bfloat16[4]") -> Exchange:
    return Exchange(group=TENSOR, kind=kind, tensors=(tensor,), peer=peer, line="p2p.py:3")


def disagreements(first: list[Exchange], second: list[Exchange]) -> tuple[str, ...]:
    return compare({0: {"step": first}, 1: {"step": second}}).disagreements


def test_equal_logs_agree_and_are_counted() -> None:
    logs = {
        0: {"build": [gather()], "step": [all_reduce(), all_reduce(DATA), message("send", 1), message("recv", 1)]},
        1: {"build": [gather()], "step": [all_reduce(), message("recv", 0), message("send", 0), all_reduce(DATA)]},
    }
    found = compare(logs)
    assert found.disagreements == ()
    assert (found.groups, found.collectives, found.neighbours, found.messages) == (2, 3, 1, 2)


@pytest.mark.parametrize(
    "other",
    [
        all_reduce(tensor="bfloat16[8]"),
        all_reduce(tensor="float32[4]"),
        all_reduce(reduction="max"),
        gather(),
    ],
    ids=["shape", "dtype", "reduction", "kind"],
)
def test_another_collective_is_found_at_its_position(other: Exchange) -> None:
    (sentence,) = disagreements([gather(), all_reduce()], [gather(), other])
    assert sentence == (
        "ranks 0 and 1 disagree on exchange 2 of the tensor group (0, 1) in the step: "
        f"rank 0 would allreduce sum bfloat16[4] (a.py:1), rank 1 would {other}"
    )


def test_a_collective_that_one_rank_skips_is_found() -> None:
    (sentence,) = disagreements([all_reduce()], [])
    assert sentence.endswith("rank 0 would allreduce sum bfloat16[4] (a.py:1), rank 1 would exchange nothing more")


def test_collectives_of_two_groups_in_another_order_hang() -> None:
    (sentence,) = disagreements([gather(), all_reduce(), gather(DATA)], [gather(), gather(DATA), all_reduce()])
    assert sentence == (
        "ranks would wait for each other in the step: rank 0 would first allreduce sum bfloat16[4] (a.py:1) in "
        "the tensor group (0, 1), rank 1 would first allgather bfloat16[4] (a.py:2) in the data group (0, 1)"
    )


def test_reductions_of_one_shape_in_another_order_are_found() -> None:
    """Nothing hangs, but each is added to the other. That an exchange comes from another line is no fault alone."""
    query, key = all_reduce(line="a.py:1"), all_reduce(line="a.py:2")
    (sentence,) = disagreements([query, key], [key, query])
    assert sentence.startswith("ranks 0 and 1 disagree on exchange 1 of the tensor group")
    assert disagreements([query], [key]) == ()


def test_the_position_is_that_of_the_collective_that_is_left_out() -> None:
    """All are of one shape, so that the logs differ in length alone."""
    logs = [all_reduce(line=f"a.py:{line}") for line in (1, 2, 3)]
    (sentence,) = disagreements(logs, [logs[0], logs[2]])
    assert sentence.startswith("ranks 0 and 1 disagree on exchange 2 of the tensor group")


def test_a_ring_of_waiting_ranks_is_found() -> None:
    """No two ranks share two groups: only all three together hang."""
    groups = [RankGroup(name=f"g{i}", description="", ranks=ranks) for i, ranks in enumerate([(0, 1), (1, 2), (0, 2)])]
    a, b, c = (all_reduce(group) for group in groups)
    in_order: dict[int, Log] = {0: {"step": [a, c]}, 1: {"step": [a, b]}, 2: {"step": [b, c]}}
    assert compare(in_order).disagreements == ()
    in_ring: dict[int, Log] = {0: {"step": [a, c]}, 1: {"step": [b, a]}, 2: {"step": [c, b]}}
    (sentence,) = compare(in_ring).disagreements
    assert [f"rank {rank} would first" in sentence for rank in range(3)] == [True] * 3


@pytest.mark.parametrize("received", [message("recv", 0, "bfloat16[2, 2]"), message("recv", 0, "float32[4]"), None])
def test_another_message_is_found(received: Exchange | None) -> None:
    (sentence,) = disagreements([message("send", 1)], [received] if received else [])
    assert sentence.startswith(
        "ranks 0 and 1 disagree on message 1 from rank 0 to rank 1 in the step: "
        "rank 0 would send bfloat16[4] (p2p.py:3), rank 1 would "
    )


def test_ranks_that_do_not_meet_are_not_compared() -> None:
    found = compare({0: {"step": [all_reduce()]}, 5: {"step": []}})
    assert found == compare({})


# Faults of the engine, on one rank.


def config(*overrides: str) -> RunConfig:
    small = ("run.dir=unused", "precision=bf16", "model.vocabulary=1000")
    return load(RunConfig, "debug/gpt", [*small, *overrides])


def _replace_one(description: str, chosen: int, instead: Callable[..., Any]) -> None:
    """Replaces one all-reduce, by number from 0, among those in groups of a description."""
    call, numbers = dist.all_reduce, count()

    def called(*args: Any, group: Any = None, **kwargs: Any) -> Any:
        chosen_now = group is not None and description in group.group_desc and next(numbers) == chosen
        return (instead if chosen_now else call)(*args, group=group, **kwargs)

    dist.all_reduce = called


def _skip() -> None:
    """A reduction over tensor ranks is left out."""
    _replace_one("TENSOR_MODEL_PARALLEL", 6, lambda *args, **kwargs: None)


def _swap() -> None:
    """The reduction of the tied embedding comes after that of the gradients' norm."""
    call, held = dist.all_reduce, []

    def hold(*args: Any, **kwargs: Any) -> None:
        held.append((args, kwargs))

    def both(*args: Any, **kwargs: Any) -> None:
        call(*args, **kwargs)
        for embedding, options in held:
            call(*embedding, **options)

    _replace_one("EMBEDDING", 1, hold)
    _replace_one("OPTIMIZER_INSTANCE", 0, both)


def _wrong_dtype() -> None:
    """The gradient of the tied embedding is reduced in another dtype."""
    call = dist.all_reduce
    _replace_one("EMBEDDING", 1, lambda tensor, **kwargs: call(tensor.double(), **kwargs))


def _wrong_shape() -> None:
    """A stage sends another shape than the next one expects."""
    make = dist.P2POp

    def transposed(op: Any, tensor: Any, *args: Any) -> Any:
        return make(op, tensor.transpose(0, 1) if op is dist.isend else tensor, *args)

    dist.P2POp = transposed  # type: ignore[assignment,misc]


FAULTS = {
    _skip: ("exchange 10 of the tensor group (0, 1) in the first step: rank 0 would ", "rank 1 would allreduce sum"),
    _swap: ("would wait for each other in the first step: ", "rank 4 would first allreduce sum float32[512, "),
    _wrong_dtype: ("exchange 1 of the embedding group (0, 4) in the first step: ", "float64[512, 128]", "float32[512"),
    _wrong_shape: ("message 1 from rank 0 to rank 4 in the first step: rank 0 would send bfloat16[4, 256, 128]",
                   "rank 4 would recv bfloat16[256, 4, 128]"),
}  # fmt: skip


def _rehearsed(rank: int, fault: Callable[[], None] | None = None) -> RankRehearsal:
    if fault is not None:
        fault()
    chosen = config("batch.sequences=16")
    return rehearse_rank(chosen, plan_layout(chosen, 8), rank, find_device("h100"))


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([rehearse_rank.__module__])
    with ProcessPoolExecutor(2, context, max_tasks_per_child=1) as pool:
        yield pool


@pytest.fixture(scope="module")
def logs(pool: ProcessPoolExecutor) -> dict[int, Log]:
    return {rank.rank: rank.exchange_log for rank in pool.map(_rehearsed, range(8))}


def test_a_correct_layout_agrees(logs: dict[int, Log]) -> None:
    found = compare(logs)
    assert found.disagreements == ()
    assert found.collectives > 100
    assert found.neighbours == 4
    assert found.messages > 0


def test_faults_of_one_rank_are_found(logs: dict[int, Log], pool: ProcessPoolExecutor) -> None:
    faulty = pool.map(_rehearsed, [0] * len(FAULTS), FAULTS)
    for (fault, words), rank in zip(FAULTS.items(), faulty, strict=True):
        assert rank.problem is None, fault.__name__
        found = compare({**logs, 0: rank.exchange_log}).disagreements
        assert any(all(word in sentence for word in words) for sentence in found), (fault.__name__, found)


_ZERO = ("parallel.zero_engine=deepspeed", "parallel.pipeline=1", "batch.sequences=16")
_INTERLEAVED = ("parallel.virtual=2", "model.layers=8", "batch.sequences=32")
_CONTEXT = ("parallel.context=2", "parallel.sequence=true", "parallel.pipeline=1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        _INTERLEAVED,
        _CONTEXT,
        ("parallel.zero=0", "parallel.pipeline=4", "parallel.tensor=1", "batch.sequences=32"),
        (*_ZERO, "parallel.zero=1"),
        (*_ZERO, "parallel.zero=2"),
        (*_ZERO, "parallel.zero=3", "parallel.tensor=1", "parallel.hpz=2", "batch.sequences=32"),
    ],
)
def test_layouts_agree(overrides: tuple[str, ...]) -> None:
    found = rehearse(config(*overrides), 8, ranks=["all-kinds"], device=find_device("h100"), per_node=8)
    assert found.problems == []
    assert found.agreement.collectives > 10
