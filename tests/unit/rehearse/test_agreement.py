"""Ranks that disagree on an exchange are found, with the group and the position. Correct layouts agree."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import combinations, count
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import p2p_communication
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.engine.zero.megatron import MegatronSharding
from pretrain.layout.layout import plan_layout
from pretrain.plan.device import find_device
from pretrain.rehearse.agreement import compare
from pretrain.rehearse.deadlock import find_deadlock
from pretrain.rehearse.exchange import Exchange, Log, RankGroup, Wait
from pretrain.rehearse.rank import rehearse_rank
from pretrain.rehearse.rank_rehearsal import RankRehearsal
from pretrain.rehearse.recorder import DEVICE
from pretrain.rehearse.run import rehearse

TENSOR = RankGroup(name="tensor", description="TENSOR", ranks=(0, 1))
DATA = RankGroup(name="data", description="DATA_PARALLEL", ranks=(0, 1))


def all_reduce(
    group: RankGroup = TENSOR, tensor: str = "bfloat16[4]", reduction: str = "sum", line: str = "a.py:1"
) -> Exchange:
    return Exchange(group=group, kind="allreduce", tensors=(tensor,), reduction=reduction, line=line)


def gather(group: RankGroup = TENSOR) -> Exchange:
    return Exchange(group=group, kind="allgather", tensors=("bfloat16[4]",), line="a.py:2")


def message(kind: str, peer: int, tensor: str = "bfloat16[4]", batch_position: int = 0) -> Exchange:
    return Exchange(
        group=TENSOR, kind=kind, tensors=(tensor,), peer=peer, batch_position=batch_position, line="p2p.py:3"
    )


def of_hosts() -> Exchange:
    group = RankGroup(name="hosts", description="HOSTS", ranks=(0, 1))
    return Exchange(group=group, kind="allreduce", tensors=("int64[1]",), on_host=True, line="hosts.py:4")


def awaited(*exchanges: Exchange) -> list[Exchange | Wait]:
    """Each exchange is waited for where it is launched."""
    return [
        entry
        for number, exchange in enumerate(exchanges)
        for entry in (exchange, Wait(exchange=number, line=exchange.line))
    ]


def wait(exchange: int | None) -> Wait:
    return Wait(exchange=exchange, line="w.py:9")


def disagreements(first: list[Exchange], second: list[Exchange]) -> tuple[str, ...]:
    return compare({0: {"step": awaited(*first)}, 1: {"step": awaited(*second)}}).disagreements


def deadlock(first: list[Exchange | Wait], second: list[Exchange | Wait]) -> str | None:
    return find_deadlock({0: {"step": first}, 1: {"step": second}})


def test_equal_logs_agree_and_are_counted() -> None:
    logs: dict[int, Log] = {
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


def test_parameters_of_one_shape_in_another_order_are_found() -> None:
    """From the same line, or in one tensor. That a rank exchanges other parameters is no fault alone."""

    def sums(*names: tuple[str, ...]) -> list[Exchange]:
        return [replace(all_reduce(), names=one) for one in names]

    (sentence,) = disagreements(sums(("a",), ("b",)), sums(("b",), ("a",)))
    assert sentence.startswith("ranks 0 and 1 disagree on exchange 1 of the tensor group")
    assert sentence.endswith(", and a would meet b")
    (sentence,) = disagreements(sums(("a", "b", "c")), sums(("a", "c", "b")))
    assert sentence.endswith(", and b would meet c")
    assert disagreements(sums(("a",), ("b",)), sums(("b",), ("c",))) == ()


def test_the_position_is_that_of_the_collective_that_is_left_out() -> None:
    """All are of one shape, so that the logs differ in length alone."""
    logs = [all_reduce(line=f"a.py:{line}") for line in (1, 2, 3)]
    (sentence,) = disagreements(logs, [logs[0], logs[2]])
    assert sentence.startswith("ranks 0 and 1 disagree on exchange 2 of the tensor group")


def test_a_ring_of_waiting_ranks_is_found() -> None:
    """No two ranks share two groups: only all three together hang."""
    groups = [RankGroup(name=f"g{i}", description="", ranks=ranks) for i, ranks in enumerate([(0, 1), (1, 2), (0, 2)])]
    a, b, c = (all_reduce(group) for group in groups)
    in_order: dict[int, Log] = {0: {"step": awaited(a, c)}, 1: {"step": awaited(a, b)}, 2: {"step": awaited(b, c)}}
    assert compare(in_order).disagreements == ()
    in_ring: dict[int, Log] = {0: {"step": awaited(a, c)}, 1: {"step": awaited(b, a)}, 2: {"step": awaited(c, b)}}
    (sentence,) = compare(in_ring).disagreements
    assert [f"rank {rank} would first" in sentence for rank in range(3)] == [True] * 3


@pytest.mark.parametrize("received", [message("recv", 0, "bfloat16[2, 2]"), message("recv", 0, "float32[4]"), None])
def test_another_message_is_found(received: Exchange | None) -> None:
    (sentence,) = disagreements([message("send", 1)], [received] if received else [])
    assert sentence.startswith(
        "ranks 0 and 1 disagree on message 1 from rank 0 to rank 1 in the step: "
        "rank 0 would send bfloat16[4] (p2p.py:3), rank 1 would "
    )


def test_the_two_sides_of_messages_come_from_lines_of_their_own() -> None:
    def messages(kind: str, peer: int, lines: str) -> list[Exchange]:
        return [replace(message(kind, peer), line=line) for line in lines]

    assert disagreements(messages("send", 1, "ab"), messages("recv", 0, "ba")) == ()


def test_ranks_that_do_not_meet_are_not_compared() -> None:
    found = compare({0: {"step": [all_reduce()]}, 5: {"step": []}})
    assert found == compare({})


def test_a_message_and_a_collective_that_wait_for_each_other_are_found() -> None:
    (sentence,) = disagreements([all_reduce(), message("send", 1)], [message("recv", 0), all_reduce()])
    assert sentence == (
        "ranks would wait for each other in the step: rank 0 would first allreduce sum bfloat16[4] (a.py:1) in the "
        "tensor group (0, 1), rank 1 would first recv bfloat16[4] (p2p.py:3) from rank 0"
    )


def test_a_wait_counts_where_it_is_made() -> None:
    """A reduction that is launched before a message and waited for after it does not hinder the message."""
    receives = awaited(message("recv", 0), all_reduce())
    sends: list[Exchange | Wait] = [all_reduce(), message("send", 1)]
    assert not str(deadlock([*sends, wait(1), wait(0)], receives)).startswith("ranks would")
    early = deadlock([sends[0], wait(0), sends[1], wait(1)], receives)
    assert early is not None
    assert early.startswith("ranks would wait for each other")
    assert (
        "rank 0 would first allreduce sum bfloat16[4] (a.py:1) in the tensor group (0, 1) (awaited at w.py:9)" in early
    )


def test_collectives_that_are_launched_in_another_order_may_hang() -> None:
    """Nobody waits for the first one before the second one is launched; NCCL asks for one order all the same."""
    one, two = all_reduce(), gather(DATA)
    found = deadlock([one, two, wait(0), wait(1)], [two, one, wait(0), wait(1)])
    assert found is not None
    assert found.startswith("ranks may wait for each other in the step: rank 0 would first allreduce sum")
    assert deadlock([one, two, wait(0), wait(1)], [one, two, wait(1), wait(0)]) is None


def test_sends_that_wait_for_each_other_are_found_unless_they_are_in_batches() -> None:
    """NCCL may buffer a short message, but not one of any length."""
    (sentence,) = disagreements([message("send", 1), message("recv", 1)], [message("send", 0), message("recv", 0)])
    assert "rank 0 would first send bfloat16[4] (p2p.py:3) to rank 1, rank 1 would first send" in sentence
    batches = [
        [message("send", peer, batch_position=1), message("recv", peer, batch_position=2), wait(0), wait(1)]
        for peer in (1, 0)
    ]
    assert deadlock(*batches) is None


def test_messages_of_one_batch_alone_do_not_meet_others() -> None:
    """NCCL sends a batch on the communicator of the group, and other messages on one of their two ranks."""
    found = deadlock(awaited(message("send", 1, batch_position=1)), awaited(message("recv", 0)))
    assert found == (
        "ranks would wait for each other in the step: rank 0 would first send bfloat16[4] (p2p.py:3) to rank 1, "
        "which rank 1 never joins on this communicator"
    )


def test_a_host_runs_ahead_of_its_device_until_it_waits_for_it() -> None:
    receives = awaited(of_hosts(), message("recv", 0))
    sends: list[Exchange | Wait] = [message("send", 1), wait(0)]
    assert deadlock([*sends, of_hosts(), wait(1)], receives) is None
    found = deadlock([*sends, wait(None), of_hosts(), wait(1)], receives)
    assert found == (
        "ranks would wait for each other in the step: rank 0 would first send bfloat16[4] (p2p.py:3) to rank 1 "
        "(awaited at w.py:9), rank 1 would first allreduce int64[1] (hosts.py:4) in the hosts group (0, 1)"
    )


def test_a_rank_that_was_not_rehearsed_is_ready() -> None:
    assert find_deadlock({1: {"step": awaited(message("recv", 0), all_reduce())}}) is None


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


def _before_first_send(act: Callable[[], None]) -> None:
    send, numbers = P2PCommunicator.send_forward, count()

    def acts_first(*args: Any, **kwargs: Any) -> None:
        if next(numbers) == 0:
            act()
        send(*args, **kwargs)

    P2PCommunicator.send_forward = acts_first


def _reduce_before_send() -> None:
    """A stage sums the tied embedding's gradient before it sends what its neighbour computes that gradient from."""

    def reduce() -> None:
        gradient = torch.zeros(512, 128, device=DEVICE)
        dist.all_reduce(gradient, group=parallel_state.get_embedding_group())

    _replace_one("EMBEDDING", 2, lambda *args, **kwargs: None)  # the first is of the build, and now another one follows
    _before_first_send(reduce)


def _send_alone() -> None:
    """A stage sends and receives one after the other where its neighbour does both in a batch."""
    p2p_communication._batched_p2p_ops = lambda **messages: [*p2p_communication._p2p_ops(**messages).values()]


def _synchronize_before_hosts() -> None:
    """A host waits for its device before it joins an exchange of hosts, which others join first."""
    call, send, held = dist.all_reduce, P2PCommunicator.send_forward, []

    def hold(*args: Any, **kwargs: Any) -> None:
        held.append((args, kwargs))

    def synchronized(*args: Any, **kwargs: Any) -> None:
        send(*args, **kwargs)
        torch.cuda.synchronize()
        while held:
            of_hosts, options = held.pop()
            call(*of_hosts, **options)

    _replace_one("HOSTS", 0, hold)
    P2PCommunicator.send_forward = synchronized


FAULTS = {
    _skip: ("exchange 10 of the tensor group (0, 1) in the first step: rank 0 would ", "rank 1 would allreduce sum"),
    _swap: ("would wait for each other in the first step: ", "rank 4 would first allreduce sum float32[512, "),
    _wrong_dtype: ("exchange 1 of the embedding group (0, 4) in the first step: ", "float64[512, 128]", "float32[512"),
    _wrong_shape: ("message 1 from rank 0 to rank 4 in the first step: rank 0 would send bfloat16[4, 256, 128]",
                   "rank 4 would recv bfloat16[256, 4, 128]"),
    _reduce_before_send: ("would wait for each other in the first step: rank 0 would first allreduce sum float32[512, ",
                          "rank 4 would first recv bfloat16[256, 4, 128] (megatron/", ") from rank 0"),
    _send_alone: ("rank 0 would first send bfloat16[256, 4, 128] (megatron/", "which rank 4 never joins"),
    _synchronize_before_hosts: ("rank 0 would first allreduce sum bfloat16[4, 256, 128] (megatron/",
                                "(0, 1), rank 1 would first allreduce sum float64[4] (pretrain/engine/group_exch"),
}  # fmt: skip


def _swap_parameters() -> None:
    """A tensor rank joins the gradients of norms in another order, in one tensor."""
    finalize: Any = sys.modules["megatron.core.distributed.finalize_model_grads"]  # its package has a function instead
    join = finalize._flatten_dense_tensors
    finalize._flatten_dense_tensors = lambda tensors: join(tensors[::-1])


def _swap_in_loop() -> None:
    """A stage sums gradients of layers that stages share in another order, all from one line."""
    reduce = MegatronSharding.reduce

    def swapped(sharding: Any, token_count: int) -> None:
        parameters = list(sharding._parameters)
        shared = [index for index, one in enumerate(parameters) if one.stages == "all"]
        first, second = next(
            (i, j) for i, j in combinations(shared, 2) if parameters[i].local_shape == parameters[j].local_shape
        )
        parameters[first], parameters[second] = parameters[second], parameters[first]
        before, sharding._parameters = sharding._parameters, parameters
        reduce(sharding, token_count)
        sharding._parameters = before

    MegatronSharding.reduce = swapped  # type: ignore[method-assign]


PARAMETERS = {
    _swap_parameters: (("debug/gpt", "parallel.pipeline=1", "parallel.sequence=true", "parallel.tensor=2"),
                       "of the tensor group (0, 1) in the first step: ", "layernorm"),
    _swap_in_loop: (("debug/albert", "parallel.pipeline=2", "parallel.tensor=1"),
                    "of the pipeline group (0, 1) in the first step: ", "pretrain/engine/zero/megatron.py:"),
}  # fmt: skip


def _one_of_two(rank: int, fault: Callable[[], None], is_faulty: bool) -> RankRehearsal:
    if is_faulty:
        fault()
    (name, *overrides), *_ = PARAMETERS[fault]
    chosen = load(
        RunConfig, name, ["run.dir=unused", "precision=bf16", "model.vocabulary=1000", "model.layers=2", *overrides]
    )
    return rehearse_rank(chosen, plan_layout(chosen, 2), rank, find_device("h100"))


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
    """Rank 0 and the ranks that it exchanges with: its neighbours in the tensor, data and pipeline groups."""
    return {rank.rank: rank.exchange_log for rank in pool.map(_rehearsed, (0, 1, 2, 4))}


def test_a_correct_layout_agrees(logs: dict[int, Log]) -> None:
    """All ranks of it in `test_layouts_agree`."""
    found = compare(logs)
    assert found.disagreements == ()
    assert found.collectives > 50
    assert found.neighbours == 1
    assert found.messages > 0


def test_faults_of_one_rank_are_found(logs: dict[int, Log], pool: ProcessPoolExecutor) -> None:
    faulty = pool.map(_rehearsed, [0] * len(FAULTS), FAULTS)
    for (fault, words), rank in zip(FAULTS.items(), faulty, strict=True):
        assert rank.problem is None, fault.__name__
        found = compare({**logs, 0: rank.exchange_log}).disagreements
        assert any(all(word in sentence for word in words) for sentence in found), (fault.__name__, found)


@pytest.mark.slow
@pytest.mark.parametrize("fault", PARAMETERS)
def test_parameters_that_one_rank_swaps_are_found(fault: Callable[[], None], pool: ProcessPoolExecutor) -> None:
    calls = [pool.submit(_one_of_two, rank, fault, faulty) for rank, faulty in ((0, False), (0, True), (1, False))]
    correct, faulty, neighbour = (call.result() for call in calls)
    assert [one.problem for one in (correct, faulty, neighbour)] == [None] * 3
    assert compare({0: correct.exchange_log, 1: neighbour.exchange_log}).disagreements == ()
    (sentence,) = compare({0: faulty.exchange_log, 1: neighbour.exchange_log}).disagreements
    assert all(word in sentence for word in (*PARAMETERS[fault][1:], " would meet "))


_ZERO = ("parallel.zero_engine=deepspeed", "parallel.pipeline=1", "batch.sequences=16")
_INTERLEAVED = ("parallel.virtual=2", "model.layers=8", "batch.sequences=32")
_CONTEXT = ("parallel.context=2", "parallel.sequence=true", "parallel.pipeline=1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("batch.sequences=16",),
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
