"""What a layer with latent attention keeps and sends (`models/latent_attention.py`)."""

import numpy as np

from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.products import positions_of
from pretrain.plan.estimate.shapes import LayerStack
from pretrain.plan.estimate.workload import StepWorkload


def kept_bytes(work: StepWorkload, stack: LayerStack) -> Array:
    """Bytes of a micro-batch, [n], that a layer keeps between its input and the output of attention: each latent before
    and after its norm, and queries, keys and values; recomputed attention keeps values beside the keys of their
    product, the others values and outputs of the width of queries."""
    model, layout, recompute = work.model, work.layout, work.step.recompute
    width, positions = work.step.activation_bytes, positions_of(work, stack)
    values = model.heads * model.value_dim
    keys_values = model.heads * (model.plain_dim + model.value_dim)
    latents = (2 + work.kernels.norm_bytes / width) * (model.latent_query + model.latent_key)
    pads = model.value_dim < model.head_dim
    exchanged = (layout.context > 1) * values
    computed = np.where(pads, 2 * model.query_dim + exchanged, np.where(layout.context > 1, values, keys_values))
    heads = 2 * model.query_dim + np.where(recompute == 1, keys_values, computed)
    angles = positions * 2 * model.rotary_dim * work.kernels.angle_bytes
    # Sums of rows for the softmax's backward pass.
    sums = np.where(recompute == 1, 0.0, 4 * positions * model.heads / layout.tensor)
    found: Array = positions * width * (latents / layout.sequence_slices + heads / layout.tensor) + angles + sums
    return found


def reads(work: StepWorkload) -> tuple[Array, Array]:
    """Features of each position that tensor ranks exchange in the place of a layer's input, and those of them that they
    gather again for gradients of weights."""
    model = work.model
    again = np.where(model.latent_query > 0, model.latent_query, model.hidden) + model.latent_key
    return again + model.rotary_dim, again


def replicated_values(work: StepWorkload) -> Array:
    """Values, [n], of the matrices and norms of a layer's latents, which every tensor rank has."""
    model, latents = work.model, work.model.latent_query + work.model.latent_key
    found = model.hidden * (latents + model.rotary_dim) + latents
    return np.where(model.latent_key > 0, found, 0.0)
