"""Floating-point operations that one rank computes in a step, as its kernels execute them."""

from itertools import chain

import numpy as np

from pretrain.plan.estimate import products
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.products import operations_of
from pretrain.plan.estimate.workload import LayerPasses, LayerStack, StepWorkload

_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 4
"""products of attention for each pair of a query and a key: scores and outputs, and the gradients of both"""


def stage_flops(work: StepWorkload) -> Array:
    """Operations of matrix products and attention of one rank of a stage of each kind, [n, s], of all models and
    micro-batches and with what is recomputed. A multiply-add is two."""
    return sum(map(_model_flops, work.models), np.zeros_like(work.stages.count))


def _model_flops(work: StepWorkload) -> Array:
    total = np.zeros_like(work.stages.count)
    for stack in work.stacks:
        total += _layers(work, stack)
    stages, trains_embedding = work.stages, work.stages.trains_embedding
    projection = trains_embedding * (1 + work.model.trains_embedding_projection[:, None])
    total += stages.embeds * (1 + projection) * _embedding(work)[:, None]
    further = work.model.further
    total += stages.predicts * ((1 + further)[:, None] * _head(work) + _comparison(work)[:, None])
    joined = further * (3 + (work.step.recompute == 2)) * operations_of(products.further_product(work))
    total += stages.predicts * joined[:, None]  # recomputed with its layer
    beside_first = work.model.positions_beside_first > 0
    if beside_first.any():  # recomputed with its layer
        of_input, of_weight = products.gradients_beside_first(work)
        passes = 1 + of_input + of_weight + (work.step.recompute == 2)[:, None]
        of_one = beside_first * operations_of(products.product_beside_first(work))
        total += stages.embeds * passes * of_one[:, None]
    of_input, of_weight = products.decoder_gradients(work)
    for product in products.decoder_products(work):  # recomputed with their layer
        again = (work.step.recompute == 2)[:, None]
        total += stages.predicts * (1 + of_input + of_weight + again) * operations_of(product)[:, None]
    return total * work.micro_batches[:, None] + stages.block_flops / work.layout.stage_ranks[:, None]


def _layers(work: StepWorkload, stack: LayerStack) -> Array:
    """Operations of the layers of a stack, [n, s]."""
    passes = LayerPasses(stack, (work.step.recompute == 2)[:, None])
    of_layer = products.layer_products(work, stack)
    crosses = stack.encoder_length > 0
    if crosses.any():
        of_layer |= {name: (m * crosses, n, k) for name, (m, n, k) in products.cross_products(work, stack).items()}
    total = np.zeros_like(stack.layers)
    for name, product in of_layer.items():
        total += passes.of(name) * operations_of(product)[:, None]
        if stack.lora_rank(name).any():
            updates = products.lora_products(work, stack, name, product)
            for one, times in zip(updates, passes.update_counts(name), strict=True):
                total += times * operations_of(one)[:, None]
    for name, product in chain.from_iterable(part.products(work, stack) for part in stack.parts):
        total += passes.of(name) * operations_of(product)[:, None]
    for operations in chain.from_iterable(part.operations(work, passes) for part in stack.parts):
        total += operations
    if (work.model.adapter_dim > 0).any():
        for product in products.adapter_products(work, stack):
            total += (passes.computed + 2 * stack.backward_layers) * operations_of(product)[:, None]
    core, core_back = _attention(work, stack)
    of_core, selective = passes.with_input_gradient("core"), (work.step.recompute == 1)[:, None]
    total += (passes.computed + selective * of_core) * core[:, None] + of_core * core_back[:, None]
    total += stack.layers * (2 * work.model.head_dim * products.kept_scores(work, stack))[:, None]
    return total


def _embedding(work: StepWorkload) -> Array:
    """Operations of a matrix between the embedding and the first layer, forward."""
    model = work.model
    positions = products.positions_of(work, work.stacks[0]) / work.layout.sequence_slices
    return model.embedding_projection * operations_of((positions, model.hidden, model.embedding_dim))


def _head(work: StepWorkload) -> Array:
    """Operations of the logits, and of a matrix before them, [n, s]."""
    model, from_layers = work.model, work.stages.head_input
    positions, columns, depth = products.head_product(work)
    transform = operations_of((model.head_transform * positions / work.layout.sequence_slices, depth, model.hidden))
    trains_transform = (model.head_transform * model.trains_transform)[:, None]
    of_logits = 1 + model.trains_output[:, None] + np.maximum(from_layers, trains_transform)
    of_transform = 1 + trains_transform + from_layers
    return of_logits * operations_of((positions, columns, depth))[:, None] + of_transform * transform[:, None]


def _comparison(work: StepWorkload) -> Array:
    """Operations of the comparison of layers with a teacher's, [n]: of the projection of hidden states, forward and
    backward; of scores, both models' in the forward pass and again in the backward pass, and two gradients."""
    compared, model, found = work.comparison, work.model, np.zeros_like(work.step.sequences)
    positions = work.step.micro_sequences * model.label_length
    for other in work.others:
        states = positions * compared.states
        found = found + compared.projects * 3 * operations_of((states, other.model.hidden, model.hidden))
    heads = positions * model.query_dim / work.layout.tensor
    of_scores = operations_of((heads, model.label_length, np.ones_like(heads)))
    return found + compared.scores * compared.layers * 6 * of_scores


def _attention(work: StepWorkload, stack: LayerStack) -> tuple[Array, Array]:
    """Operations of one layer's attention forward and backward, [n]. Kernels that write no scores compute
    them again; given biases of scores, they compute all pairs."""
    model, layout, attention = work.model, work.layout, work.attention
    heads = work.step.micro_sequences * model.heads / (layout.tensor * layout.context)
    written = attention.score_bytes > 0
    all_keys = np.where(attention.score_biases > 0, stack.length, stack.computed_keys)
    of_all = np.where(written, attention.score_share * stack.length, all_keys)
    keys = of_all + model.distance_rows
    cross_written = work.attention.cross_score_bytes > 0
    pair = 2 * heads * model.head_dim * stack.length
    forward, backward = np.zeros_like(pair), np.zeros_like(pair)
    for seen, in_memory in ((keys, written), (stack.encoder_length, cross_written)):
        forward += pair * seen * _FORWARD_PRODUCTS
        backward += pair * seen * (_BACKWARD_PRODUCTS + ~in_memory)
    return forward, backward
