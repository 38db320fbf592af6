"""QK-Clip (Kimi K2, arXiv 2507.20534, section 2.1): attention heads whose scores grow beyond a threshold are scaled
down to it, by their weights.

After a step in which the largest score of a head was S > threshold, with r = threshold / S:

    its rows of the query matrix, and those of its key, are multiplied by sqrt(r)
    with latent attention, those of its queries that positions turn by r, as all heads share their key

Where several heads share a key, S is the largest of theirs, and all of them are scaled (megatron-core does the same).
Biases are scaled as the weights are. The maximum is over the global batch, which no layout changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.attention.core import CoreAttention
from pretrain.config.model import Model
from pretrain.engine.megatron.step_part import PartFigures, StepPart, StepPasses
from pretrain.models.inputs import MicroBatch

FIGURES = ("max_attention_score", "clipped_heads")
"""names of figures in metrics.jsonl"""
_SCORES = "the largest attention scores"


@dataclass(frozen=True)
class StepScores:
    """The largest scores of a step, the same on every rank."""

    model: Model
    threshold: float
    layers: Sequence[int]
    """indices of the layers of this rank"""
    largest_LH: Tensor
    """fp32, of all layers and heads; -inf where a head has seen nothing"""

    @property
    def values(self) -> Tensor:
        """[FIGURES] float64: the largest score, and the number of heads with scores above the threshold."""
        above = (self.largest_LH > self.threshold).sum()
        return torch.stack([self.largest_LH.max().double(), above.double()])

    @staticmethod
    def read(values: Sequence[float]) -> dict[str, float]:
        """The figures of a step, from `values` as numbers."""
        return {name: value for name, value in zip(FIGURES, values, strict=True) if isfinite(value)}

    def row_factors(self) -> dict[str, Tensor]:
        """Factors of the rows of this rank's parameters, by name. Without a look at the device: rows of heads that are
        not scaled have factors of 1."""
        found = {}
        for layer in self.layers:
            largest_H = self.largest_LH[layer]
            factors_H = torch.where(largest_H > self.threshold, self.threshold / largest_H, 1)
            for name, factors_R in _rows(self.model, factors_H):
                found[f"decoder.layers.{layer}.self_attention.{name}"] = factors_R
        return found


def _rows(model: Model, factors_H: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Factors of the rows of each parameter of a layer that makes queries or keys, in the order of its rows."""
    shape = model.latent_attention
    if shape is None:
        groups, width = model.num_kv_heads, model.dim_per_head
        roots_G1 = factors_H.view(groups, -1).amin(1, keepdim=True).sqrt()
        of_queries_and_key = roots_G1.expand(-1, model.heads // groups + 1)
        rows = torch.cat([of_queries_and_key, torch.ones_like(roots_G1)], dim=1).flatten().repeat_interleave(width)
        yield "linear_qkv.weight", rows
        if model.has_qkv_bias:
            yield "linear_qkv.bias", rows
        return
    factors_H1 = factors_H[:, None]
    plain = factors_H1.sqrt().expand(-1, shape.qk_nope_head_dim)
    queries = "linear_q_proj.weight" if shape.q_lora_rank is None else "linear_q_up_proj.weight"
    yield queries, torch.cat([plain, factors_H1.expand(-1, shape.qk_rope_head_dim)], dim=1).flatten()
    values = torch.ones_like(factors_H1).expand(-1, shape.v_head_dim)
    yield "linear_kv_up_proj.weight", torch.cat([plain, values], dim=1).flatten()


class QkClip(StepPart):
    """Keeps the largest scores of the heads of `chunks`, those of a rank, and clips by them."""

    reads = frozenset({"real"})

    def __init__(self, model: Model, threshold: float, chunks: Sequence[nn.Module], device: torch.device) -> None:
        self._model, self._threshold, self._device = model, threshold, device
        modules = (module for chunk in chunks for module in chunk.modules())
        self._cores = {core.heads.layer: core for core in modules if isinstance(core, CoreAttention)}
        for core in self._cores.values():
            core.largest_H = torch.empty(len(core.heads.heads), device=device)

    def attached(self, batches: Sequence[MicroBatch], passes: StepPasses) -> Sequence[MicroBatch]:
        """The same. Scores of the step before are forgotten."""
        for largest_H in self._own_scores():
            largest_H.fill_(-torch.inf)
        return batches

    def computed(self) -> None:
        """See `StepPart`: the largest scores of all ranks."""
        largest_LH = torch.full((self._model.layers, self._model.heads), -torch.inf, device=self._device)
        for layer, core in self._cores.items():
            assert core.largest_H is not None
            largest_LH[layer, core.heads.heads[0] : core.heads.heads[-1] + 1] = core.largest_H
        dist.all_reduce(largest_LH, op=dist.ReduceOp.MAX)
        self._scores = StepScores(self._model, self._threshold, list(self._cores), largest_LH)

    def values(self, step: int) -> Sequence[Tensor]:
        """See `StepPart`."""
        return [self._scores.values]

    def read(self, values: Sequence[float], counts: Sequence[float]) -> PartFigures:
        """See `StepPart`."""
        self._clips = values[FIGURES.index("clipped_heads")] > 0
        return PartFigures(figures=self._scores.read(values))

    def row_factors(self) -> Mapping[str, Tensor]:
        """See `StepPart`."""
        return self._scores.row_factors() if self._clips else {}

    def found(self) -> Mapping[str, Sequence[Tensor]]:
        """See `StepPart`."""
        return {_SCORES: list(self._own_scores())}

    def exchanged(self) -> Mapping[str, Sequence[Tensor]]:
        """See `StepPart`."""
        return {_SCORES: [self._scores.largest_LH]}

    def _own_scores(self) -> Iterator[Tensor]:
        """[heads] fp32 of each layer of this rank: the largest scores that it has found in this step."""
        for core in self._cores.values():
            assert core.largest_H is not None
            yield core.largest_H
