"""Work of a layer with latent attention: what it computes, keeps and sends (`models/latent_attention.py`)."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pretrain.config.model import Model
from pretrain.plan.estimate.entries import Array, Product
from pretrain.plan.estimate.model_work import ModelWork
from pretrain.plan.estimate.products import positions_of
from pretrain.plan.estimate.workload import LayerStack, LayerWork, StepWorkload


class LatentAttentionWork(ModelWork):
    """See `ModelWork`."""

    def layer(self, model: Model, number: int) -> LayerWork | None:
        """See `ModelWork`."""
        shape = model.latent_attention
        if shape is None:
            return None
        return LatentLayerWork(shape.qk_nope_head_dim, shape.q_lora_rank or 0, shape.kv_lora_rank)


@dataclass(frozen=True)
class LatentLayerWork(LayerWork):
    """See `LayerWork`. Every tensor rank makes latents, of its own positions."""

    plain_dim: int
    """width of a head that rotary positions do not turn"""
    query_dim: int
    """width of the latents that queries are made of; 0: they are made of hidden states"""
    key_dim: int
    """width of those that keys and values are made of"""

    def qkv_product(self, work: StepWorkload, stack: LayerStack) -> Product:
        """See `LayerWork`: keys and values, of latents."""
        return positions_of(work, stack), self._keys_values(work) / work.layout.tensor, np.asarray(self.key_dim)

    def products(self, work: StepWorkload, stack: LayerStack) -> Iterable[tuple[str, Product]]:
        """See `LayerWork`: latents, and queries."""
        model, layout, positions = work.model, work.layout, positions_of(work, stack)
        own, queries = positions / layout.sequence_slices, model.query_dim / layout.tensor
        yield "qkv", (own, self.key_dim + model.rotary_dim, model.hidden)
        if not self.query_dim:
            yield "qkv", (positions, queries, model.hidden)
            return
        of_queries = np.full_like(own, self.query_dim)
        yield "qkv", (own, of_queries, model.hidden)
        yield "qkv", (positions, queries, of_queries)

    def attention_bytes(self, work: StepWorkload, stack: LayerStack) -> Array:
        """See `LayerWork`: each latent before and after its norm, and queries, keys and values; recomputed attention
        keeps values beside the keys of their product, the others values and outputs of the width of queries."""
        model, layout, recompute = work.model, work.layout, work.step.recompute
        width, positions = work.step.activation_bytes, positions_of(work, stack)
        values, keys_values = model.heads * model.value_dim, self._keys_values(work)
        latents = (2 + work.kernels.norm_bytes / width) * (self.query_dim + self.key_dim)
        pads = model.value_dim < model.head_dim
        exchanged = (layout.context > 1) * values
        computed = np.where(pads, 2 * model.query_dim + exchanged, np.where(layout.context > 1, values, keys_values))
        heads = 2 * model.query_dim + np.where(recompute == 1, keys_values, computed)
        angles = positions * 2 * model.rotary_dim * work.kernels.angle_bytes
        # Sums of rows for the softmax's backward pass.
        sums = np.where(recompute == 1, 0.0, 4 * positions * model.heads / layout.tensor)
        found: Array = positions * width * (latents / layout.sequence_slices + heads / layout.tensor) + angles + sums
        return found

    def exchanged_widths(self, work: StepWorkload) -> tuple[Array, Array]:
        """See `LayerWork`: latents and the key of all heads."""
        again = (self.query_dim or work.model.hidden) + self.key_dim
        return again + work.model.rotary_dim, again + np.zeros_like(work.model.hidden)

    def replicated_values(self, work: StepWorkload) -> Iterable[tuple[str, Array]]:
        """See `LayerWork`: matrices and norms of latents."""
        model, latents = work.model, self.query_dim + self.key_dim
        return [("qkv", model.hidden * (latents + model.rotary_dim) + latents)]

    def _keys_values(self, work: StepWorkload) -> Array:
        """Features of all keys that rotary positions do not turn, and values."""
        found: Array = work.model.heads * (self.plain_dim + work.model.value_dim)
        return found
