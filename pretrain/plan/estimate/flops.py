"""Floating-point operations that one rank computes in a step, as its kernels execute them."""

import numpy as np

from pretrain.plan.estimate import compute
from pretrain.plan.estimate.workload import Array, LayerStack, StepWorkload

_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 4
"""products of attention for each pair of a query and a key: scores and outputs, and the gradients of both"""


def stage_flops(work: StepWorkload) -> Array:
    """Operations of matrix products and attention of one rank of a stage of each kind, [n, s], of all models and
    micro-batches and with what is recomputed. A multiply-add is two."""
    return sum(map(_model_flops, work.models), np.zeros_like(work.stages.count))


def _model_flops(work: StepWorkload) -> Array:
    total = np.zeros_like(work.stages.count)
    recompute, trains = work.step.recompute, work.step.trains
    for stack in work.stacks:
        products = compute.layer_products(work, stack)
        crosses = stack.encoder_length > 0
        if crosses.any():
            products += [(m * crosses, n, k) for m, n, k in compute.cross_products(work, stack)]
        forward = _operations(products)
        core, core_backward = _attention(work, stack)
        repeated = np.select([recompute == 2, recompute == 1], [forward + core, core], 0.0)
        backward = trains * (2 * forward + core_backward)
        total += stack.layers * (forward + core + backward + repeated)[:, None]
    embeds, predicts = work.stages.embeds, work.stages.predicts
    convolution = _operations([compute.convolution_product(work)])  # recomputed with its layer
    total += embeds * (work.model.convolution * (1 + 2 * trains + (recompute == 2)) * convolution)[:, None]
    total += (1 + 2 * trains)[:, None] * (embeds * _embedding(work)[:, None] + predicts * _head(work)[:, None])
    if decoder := compute.decoder_products(work):  # recomputed with their layer
        total += predicts * ((1 + 2 * trains + (recompute == 2)) * _operations(decoder))[:, None]
    return total * work.micro_batches[:, None]


def _embedding(work: StepWorkload) -> Array:
    """Operations of a matrix between the embedding and the first layer, forward."""
    model = work.model
    positions = compute.positions_of(work, work.stacks[0]) / work.layout.sequence_slices
    return model.embedding_projection * _operations([(positions, model.hidden, model.embedding_dim)])


def _head(work: StepWorkload) -> Array:
    """Operations of the logits, and of a matrix before them, forward."""
    model = work.model
    positions, columns, depth = compute.head_product(work)
    transform = (model.head_transform * positions / work.layout.sequence_slices, depth, model.hidden)
    return _operations([(positions, columns, depth), transform])


def _operations(products: list[compute.Product]) -> Array:
    return 2 * sum((m * n * k for m, n, k in products[1:]), np.multiply.reduce(products[0]))


def _attention(work: StepWorkload, stack: LayerStack) -> tuple[Array, Array]:
    """Operations of a layer's attention, forward and backward. Kernels that write no scores compute them again; given
    biases of scores, they compute all pairs."""
    model, layout, attention = work.model, work.layout, work.attention
    heads = work.step.micro_sequences * model.heads / (layout.tensor * layout.context)
    written = attention.score_bytes > 0
    all_keys = np.where(attention.score_biases > 0, stack.length, stack.computed_keys)
    keys = np.where(written, attention.score_share * stack.key_length, all_keys) + model.distance_rows
    cross_written = work.attention.cross_score_bytes > 0
    pair = 2 * heads * model.head_dim * stack.length
    forward, backward = np.zeros_like(pair), np.zeros_like(pair)
    for seen, in_memory in ((keys, written), (stack.encoder_length, cross_written)):
        forward += pair * seen * _FORWARD_PRODUCTS
        backward += pair * seen * (_BACKWARD_PRODUCTS + ~in_memory)
    scores = pair * stack.distances  # of queries and distances: one product, and the gradients of both
    projection = 2 * stack.distances * model.hidden * model.query_dim / layout.tensor / layout.context
    return forward + scores + projection, backward + 2 * scores + projection
