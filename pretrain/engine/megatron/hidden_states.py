"""Hidden states of a frozen model: what its layers put out, from every stage and context rank, on all of them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.batch import Rows
from pretrain.config.model import Model
from pretrain.engine.base import Stack
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.micro_batches import Cutter
from pretrain.engine.megatron.runner import Runner
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.models.inputs import MicroBatch
from pretrain.models.layers import Layer
from pretrain.models.network import Network


class HiddenStates:
    """See `base.HiddenStateEngine`."""

    def __init__(
        self, *, model: Model, layout: Layout, groups: Groups, runner: Runner, cutter: Cutter, device: torch.device
    ) -> None:
        self._model, self._layout, self._groups = model, layout, groups
        self._runner, self._cutter, self._device = runner, cutter, device

    def compute(self, batch: Rows, stack: Stack, layers: Sequence[int], pooled: bool) -> np.ndarray:
        """See `base.HiddenStateEngine`. The rows are divided into one micro-batch for each stage."""
        rows, width = batch.loss_mask.shape
        model = self._model
        if model.downsampling is not None and not (model.upsamples and set(layers) <= {0, model.layers}):
            raise ConfigError(
                f"layers of the {model.family} family read fewer positions than a row has, and one fine-tuned for rows "
                "ends in these: use --layers last or 0, which have states of all positions, of another model"
            )
        stages, context = self._layout.pipeline, self._layout.context
        if width % context or batch.tokens.shape[1] % context:
            raise ValueError(f"{self._layout} computes multiples of {context} positions, not {width}")
        micro = -(-rows // stages)
        padded = batch[np.arange(micro * stages).clip(max=rows - 1)]
        hidden = self._model.hidden
        shape = (len(layers), micro * stages, hidden, *(() if pooled else (width // context,)))
        states = torch.zeros(shape, device=self._device)
        outputs: dict[int, Tensor] = {}

        def forward(chunk: nn.Module, micro_batch: MicroBatch) -> Any:
            stream = chunk(micro_batch, head=False)
            mine = slice(micro_batch.first_row, micro_batch.first_row + len(micro_batch.tokens_BS))
            for index, layer in enumerate(layers):
                if layer in outputs:
                    state_BHS = outputs[layer].permute(1, 2, 0).float()
                    mask_BS = micro_batch.loss_mask_BL
                    states[index, mine] = torch.einsum("bhs,bs->bh", state_BHS, mask_BS) if pooled else state_BHS
            outputs.clear()
            return stream

        with self._runner.without_sequence_parallel(), _captured(self._modules(stack), layers, outputs):
            self._runner.evaluate(self._cutter.cut(padded, micro), forward, _nothing)
        states = self._groups.sum_over_pipeline(states)
        states = self._groups.sum_over_context(states) if pooled else self._groups.gather_over_context(states)
        found: np.ndarray = states[:, :rows].cpu().numpy()
        if not pooled:
            return found.transpose(1, 3, 0, 2)
        means: np.ndarray = found.transpose(1, 0, 2) / batch.loss_mask.sum(axis=1)[:, None, None]
        return means

    def _modules(self, stack: Stack) -> dict[int, nn.Module]:
        """This rank's modules whose outputs are hidden states of `stack`, by layer; 0 is what the embedding puts out.
        A stack's final norm is in its last layer."""
        before = self._model.stacks[0] if stack == "decoder" else 0
        modules: dict[int, nn.Module] = {}
        for chunk in self._runner.bare:
            if chunk.pre_process:
                modules[0] = getattr(chunk.embedding, stack)
            if self._model.downsampling is not None:  # whose layers between have other positions
                if chunk.post_process:
                    modules[self._model.layers] = chunk.before_head.layer  # type: ignore[union-attr, assignment]
                continue
            modules |= {
                layer.layer_number - before: layer for layer in _layers(chunk) if layer.part == stack
            }  # fmt: skip
        return modules


def _layers(chunk: Network) -> Iterator[Layer]:
    for layer in chunk.decoder.layers:
        assert isinstance(layer, Layer)
        yield layer


@contextmanager
def _captured(modules: Mapping[int, nn.Module], layers: Sequence[int], outputs: dict[int, Tensor]) -> Iterator[None]:
    """Inside, each forward pass leaves the outputs [S, B, H] of those `modules` that are among `layers` in
    `outputs`."""

    def hook(layer: int) -> Any:
        def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
            outputs[layer] = output

        return keep

    handles = [module.register_forward_hook(hook(layer)) for layer, module in modules.items() if layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _nothing(batch: MicroBatch, stream: Any) -> tuple[Tensor, Tensor, None]:
    """A loss function for the schedule, which reports nothing."""
    return stream.sum(), torch.tensor(0, dtype=torch.int), None
