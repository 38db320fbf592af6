"""docs/one-tensor.md says what the activations of a micro-batch look like on their way through a GPT: this runs it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from data_pipeline.batch import Rows
from pretrain.attention import core
from pretrain.attention.core import CoreAttention
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.models.blocks import BiasDropoutAdd
from pretrain.models.outputs import tensors_in
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "one-tensor.md"
SEQUENCES, LENGTH, VOCABULARY = 16, 320, 1024
SETTINGS = [
    "parallel.context=2", f"model.sequence_length={LENGTH}", f"batch.sequences={SEQUENCES}",
    "batch.micro_sequences=8", "precision=bf16",
]  # fmt: skip
ROW = re.compile(r"^\| \d+\. ([^|]+) \| [^|]+ \| [^|]* = \[([^|]*)\] (\w+) \| ([^|]*?) ?\|$", re.MULTILINE)
"""A step on the page: its number and name, code, dimensions with shape and dtype, exchange."""
COLLECTIVES = {"all_reduce": "all-reduce", "all_to_all_single": "all-to-all", "broadcast": "broadcast"}


class Steps:
    """The tensor of each named step on its first use, and the exchanges since the step before it."""

    def __init__(self, axes: dict[tuple[int, ...], str]) -> None:
        self.found: dict[str, tuple[str, str]] = {}
        self._axes, self._exchanges = axes, list[str]()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        shape = ", ".join(map(str, tensor.shape))
        self.found.setdefault(name, (f"{shape} {str(tensor.dtype).removeprefix('torch.')}", "; ".join(self._exchanges)))
        self._exchanges.clear()

    def exchanged(self, kind: str, ranks: list[int]) -> None:
        if len(ranks) > 1:
            self._exchanges.append(f"{kind}, {self._axes.get(tuple(ranks), 'all ranks')}")

    def after(
        self, owner: Any, method: str, name: str, pick: Callable[..., torch.Tensor] = lambda result, *_: result
    ) -> None:
        """Adds the step `name` after each call of `owner.method`, whose tensor is `pick(result, *arguments)`."""
        call = getattr(owner, method)

        def called(*arguments: Any, **more: Any) -> Any:
            self._exchanges.clear()
            result = call(*arguments, **more)
            self.add(name, pick(result, *arguments))
            return result

        setattr(owner, method, called)


def _watch_exchanges(steps: Steps) -> None:
    def watched(call: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def exchange(*arguments: Any, **more: Any) -> Any:
            steps.exchanged(kind, dist.get_process_group_ranks(more["group"]))
            return call(*arguments, **more)

        return exchange

    for name, kind in COLLECTIVES.items():
        setattr(dist, name, watched(getattr(dist, name), kind))
    send_receive = dist.batch_isend_irecv

    def sent(operations: list[Any]) -> Any:
        for one in operations:
            steps.exchanged("send and receive", sorted([dist.get_rank(), one.peer]))
        return send_receive(operations)

    dist.batch_isend_irecv = sent


def _trace() -> tuple[dict[str, tuple[str, str]], int]:
    """What this rank had at each step of the first micro-batch, and its head in attention."""
    overrides = [*SETTINGS, f"model.vocabulary={VOCABULARY}", "data.path=unused"]
    engine = build_engine(load(RunConfig, ROOT / "configs" / "debug" / "gpt.yaml", overrides))
    groups, rank = engine.groups, dist.get_rank()
    pipeline = tuple(sorted((rank, (rank + 4) % 8)))
    axes = {tuple(dist.get_process_group_ranks(groups.tensor_group)): "tensor", pipeline: "pipeline"}
    axes[tuple(dist.get_process_group_ranks(groups.replica_group))] = "context"  # there are no further data ranks
    steps = Steps(axes)
    _watch_exchanges(steps)
    network, objective = engine.bare[0], engine.objective
    for name, module in network.named_modules():
        _watch_module(steps, name, module, "loss of the micro-batch" if groups.stage else "output of the stage")
    steps.after(engine._cutter, "cut", "micro-batch", lambda batches, *_: batches[0].tokens_BS)
    steps.after(core, "full_sequences", "complete sequences")
    steps.after(core, "own_positions", "slice of the sequence")
    steps.after(objective, "_real", "logits")
    steps.after(objective, "_cross_entropy", "cross entropy")
    steps.after(groups, "sum_over_replicas", "loss over ranks")
    steps.after(groups, "broadcast_over_pipeline", "loss of the batch")
    stream = np.random.default_rng(0).integers(0, VOCABULARY, (SEQUENCES, LENGTH + 1))
    engine.train_step(Rows.of(stream[:, :-1].copy(), stream[:, 1:].copy()), 1e-3, 1)
    (head,) = next(module for module in network.modules() if isinstance(module, CoreAttention)).heads.heads
    return steps.found, head


MODULES = {
    "embedding.word_embeddings": "word embeddings", "embedding": "embedding", "input_layernorm": "norm",
    "self_attention.linear_qkv": "queries, keys, values", "self_attention.linear_proj": "output projection",
    "mlp.linear_fc1": "feed-forward, first matrix", "mlp.linear_fc2": "feed-forward, second matrix",
    "final": "final norm",
}  # fmt: skip


def _watch_module(steps: Steps, name: str, module: nn.Module, end: str) -> None:
    step = end if name == "" else MODULES.get(re.sub(r"^decoder\.layers\.\d+\.", "", name))

    def forwarded(_: nn.Module, arguments: Any, output: Any) -> None:
        if step == "norm":  # on the later stage, of what has arrived
            steps.add("received" if dist.get_rank() >= 4 else "first layer's input", arguments[0])
        if step is not None:
            steps.add(step, next(tensors_in(output)))

    module.register_forward_hook(forwarded)
    if isinstance(module, BiasDropoutAdd):
        steps.after(module, "add", "residual")
    if isinstance(module, CoreAttention):
        steps.after(module, "wrap", "attention")  # which may attend in fp32


def test_the_page_shows_the_shapes_and_exchanges_of_a_run() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(setting in page for setting in SETTINGS)
    shown = {name: (f"{shape} {dtype}", exchange) for name, shape, dtype, exchange in ROW.findall(page)}
    results = run_ranks(8, _trace, timeout_s=300)
    (first, _), (last, _) = results[0], results[4]
    measured = first | {name: step for name, step in last.items() if name not in first or name == "received"}
    assert shown == {name: measured.get(name) for name in shown}
    assert len(shown) > 15
    heads = re.findall(r"^\| (\d), (\d) \| [^|]+ \| (\d) \|", page, re.MULTILINE)
    assert [(int(a), int(b), int(head)) for a, b, head in heads] == [
        (rank, rank + 4, results[rank][1]) for rank in range(4)
    ]
