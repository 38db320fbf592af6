"""Sizes of what each layer hands on, over a step's global batch: the same on every layout.

They are figures of metrics.jsonl, such as {"layer_output_rms/decoder.layers.0": 1.2, ...}.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.step_part import PartFigures, StepPart, StepPasses
from pretrain.models.inputs import MicroBatch
from pretrain.models.layers import Layer
from pretrain.models.network import Network

RMS, LARGEST = "layer_output_rms/", "layer_output_max/"
"""prefixes of keys of metrics.jsonl; the name of a layer follows"""


class LayerOutputs(StepPart):
    """Root mean square and largest absolute value of layers' outputs, at positions that are no padding. `chunks` are
    this rank's of the trained model."""

    reads = frozenset({"counted"})

    def __init__(self, config: RunConfig, groups: Groups, chunks: Sequence[Network], device: torch.device) -> None:
        model, parallel = config.model, config.parallel
        encoder, decoder = model.stacks
        self._layers = [
            *(f"encoder.layers.{number}" for number in range(encoder)),
            *(f"decoder.layers.{number}" for number in range(decoder)),
            *model.last_layer_again,
        ]
        self._numbers = {name: number for number, name in enumerate(self._layers)}
        self._chunks, self._groups, self._every = chunks, groups, config.track.activations_every_steps
        self._slices_sequence, self._recomputes = parallel.sequence, parallel.recompute == "full"
        self._sums = torch.zeros(2, len(self._layers), dtype=torch.float64, device=device)  # of squares, of how many
        self._largest = torch.zeros(len(self._layers), dtype=torch.float32, device=device)
        self._batch: MicroBatch | None = None

    @contextmanager
    def during(self, step: int) -> Iterator[None]:
        """In steps that are measured, layers are looked at in every forward pass that is not one again for the backward
        pass."""
        handles: list[RemovableHandle] = []
        self._looks = step % self._every == 0
        if not self._looks:
            yield
            return
        for chunk in self._chunks:
            handles.append(chunk.register_forward_pre_hook(self._begin))
            handles += [layer.register_forward_hook(self._look) for layer in chunk.modules() if self._counts(layer)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def attached(self, batches: Sequence[MicroBatch], passes: StepPasses) -> Sequence[MicroBatch]:
        """The same. What was found before, also by an earlier computation of this step, is forgotten."""
        self._sums.zero_()
        self._largest.zero_()
        return batches

    def read(self, values: Sequence[float], counts: Sequence[float]) -> PartFigures:
        """See `StepPart`."""
        if not self._looks:
            return PartFigures()
        dist.all_reduce(self._sums)
        dist.all_reduce(self._largest, dist.ReduceOp.MAX)
        squares, values_seen = self._sums
        found = zip(
            self._layers, (squares / values_seen.clamp(min=1)).sqrt().tolist(), self._largest.tolist(), strict=True
        )
        rows = [(f"{RMS}{name}", f"{LARGEST}{name}", rms, largest) for name, rms, largest in found]
        of_rms, of_largest = {key: rms for key, _, rms, _ in rows}, {key: largest for _, key, _, largest in rows}
        return PartFigures(figures=of_rms | of_largest)

    def _counts(self, module: nn.Module) -> bool:
        """Whether it is a layer of a stack: those that predict further tokens have rows of their own."""
        return isinstance(module, Layer) and module.global_name in self._numbers

    def _begin(self, chunk: Any, arguments: tuple[Any, ...]) -> None:
        self._batch = arguments[0]

    def _look(self, layer: Layer, arguments: Any, output_PBH: Tensor) -> None:
        again = self._recomputes and torch.is_grad_enabled()
        copied = not self._slices_sequence and self._groups.tensor_rank > 0
        if not again and not copied:
            self._add(layer, output_PBH.detach())

    def _add(self, layer: Layer, output_PBH: Tensor) -> None:
        assert self._batch is not None
        assert self._batch.counted is not None, "the cutter says which positions are no padding"
        positions = len(output_PBH)
        first = self._groups.tensor_rank * positions if self._slices_sequence else 0
        counted_PB = self._batch.counted[layer.part][:, first : first + positions].T
        norms_PB = torch.linalg.vector_norm(output_PBH, dim=-1, dtype=torch.float32)  # without a copy of the output
        largest_PB = torch.linalg.vector_norm(output_PBH, torch.inf, dim=-1).float()
        number = self._numbers[layer.global_name]
        self._sums[0, number] += norms_PB.double().square().masked_fill(~counted_PB, 0).sum()
        self._sums[1, number] += counted_PB.sum() * output_PBH.shape[-1]
        self._largest[number] = torch.maximum(self._largest[number], largest_PB.masked_fill(~counted_PB, 0).amax())
