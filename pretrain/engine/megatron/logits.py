"""Logits of all positions of a few rows, on one rank: to compare a model with other implementations."""

from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.batch import Rows
from pretrain.engine.megatron.micro_batches import Cutter
from pretrain.engine.megatron.runner import Runner
from pretrain.models.inputs import MicroBatch
from pretrain.models.outputs import ModelOutputs


def compute_logits(runner: Runner, cutter: Cutter, batch: Rows, vocabulary: int | None) -> tuple[Tensor, ...]:
    """[rows, labels, ...] float32 on the CPU: what a task head answers, and logits of the `vocabulary`; [rows, 2] of a
    pooled head. Those that the model has, in this order."""

    def report(_: MicroBatch, outputs: ModelOutputs) -> tuple[Tensor, Tensor, list[Tensor]]:
        logits_LBV = None if outputs.logits is None else outputs.logits[..., :vocabulary]
        by_position = [x.transpose(0, 1) for x in (outputs.answers, logits_LBV) if x is not None]
        found = by_position if outputs.next_sentence is None else [*by_position, outputs.next_sentence]
        return found[0].sum(), torch.tensor(0, dtype=torch.int), [x.float().cpu() for x in found]

    results = runner.evaluate(cutter.cut(batch, 1), _forward, report)
    return tuple(torch.cat(of_rows) for of_rows in zip(*results, strict=True))


def _forward(chunk: nn.Module, batch: MicroBatch) -> Any:
    return chunk(batch)
