"""Floating-point operations that one rank computes in a step, as its kernels execute them."""

import numpy as np

from pretrain.plan.estimate import experts, products
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.products import Product
from pretrain.plan.estimate.shapes import LayerStack
from pretrain.plan.estimate.workload import StepWorkload

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
    joined = further * (3 + (work.step.recompute == 2)) * _operations(products.further_product(work))
    total += stages.predicts * joined[:, None]  # recomputed with its layer
    if work.model.convolution.any():  # recomputed with its layer
        of_input, of_weight = products.convolution_gradients(work)
        passes = 1 + of_input + of_weight + (work.step.recompute == 2)[:, None]
        of_one = work.model.convolution * _operations(products.convolution_product(work))
        total += stages.embeds * passes * of_one[:, None]
    of_input, of_weight = products.decoder_gradients(work)
    for product in products.decoder_products(work):  # recomputed with their layer
        again = (work.step.recompute == 2)[:, None]
        total += stages.predicts * (1 + of_input + of_weight + again) * _operations(product)[:, None]
    return total * work.micro_batches[:, None] + stages.block_flops / work.layout.of_stage[:, None]


def _layers(work: StepWorkload, stack: LayerStack) -> Array:
    """Operations of the layers of a stack, [n, s]."""
    full, selective = (work.step.recompute == 2)[:, None], (work.step.recompute == 1)[:, None]
    computed = stack.layers + full * stack.backward_layers  # times that a layer is computed forward

    def with_input_gradient(product: str) -> Array:
        found = stack.with_input_gradient(product)  # what is recomputed has the gradient of its layer's input
        return found if product == "distances" else np.where(full, stack.backward_layers, found)

    of_layer = products.layer_products(work, stack)
    crosses = stack.encoder_length > 0
    if crosses.any():
        of_layer |= {name: (m * crosses, n, k) for name, (m, n, k) in products.cross_products(work, stack).items()}
    total = np.zeros_like(stack.layers)
    for name, product in of_layer.items():
        passes = computed + with_input_gradient(name) + stack.with_weight_gradient(name)
        total += passes * _operations(product)[:, None]
        if stack.lora_rank(name).any():
            by_a, by_b = products.lora_products(work, stack, name, product)
            total += (computed + with_input_gradient(name) + stack.backward_layers) * _operations(by_a)[:, None]
            total += (computed + 2 * stack.backward_layers) * _operations(by_b)[:, None]
    for product in products.latent_products(work, stack):
        passes = computed + with_input_gradient("qkv") + stack.with_weight_gradient("qkv")
        total += passes * _operations(product)[:, None]
    for grouped in experts.expert_products(work, stack):
        passes = computed + with_input_gradient(grouped.name) + stack.with_weight_gradient(grouped.name)
        total += passes * _operations((grouped.rows, grouped.columns, grouped.depth))[:, None]
        if stack.lora_rank(grouped.name).any():
            by_a, by_b = ((one.rows, one.columns, one.depth) for one in experts.update_products(stack, grouped))
            of_input = with_input_gradient(grouped.name)
            total += (computed + of_input + stack.backward_layers) * _operations(by_a)[:, None]
            total += (computed + 2 * stack.backward_layers) * _operations(by_b)[:, None]
    routed = computed + with_input_gradient("fc1") + stack.with_weight_gradient("fc1")
    total += routed * _operations(experts.router_product(work, stack))[:, None]
    if (work.model.adapter_dim > 0).any():
        for product in products.adapter_products(work, stack):
            total += (computed + 2 * stack.backward_layers) * _operations(product)[:, None]
    core, core_back = _attention(work, stack)
    of_core = with_input_gradient("core")
    total += (computed + selective * of_core) * core[:, None] + of_core * core_back[:, None]
    total += stack.layers * (2 * work.model.head_dim * products.kept_scores(work, stack))[:, None]
    return total


def _embedding(work: StepWorkload) -> Array:
    """Operations of a matrix between the embedding and the first layer, forward."""
    model = work.model
    positions = products.positions_of(work, work.stacks[0]) / work.layout.sequence_slices
    return model.embedding_projection * _operations((positions, model.hidden, model.embedding_dim))


def _head(work: StepWorkload) -> Array:
    """Operations of the logits, and of a matrix before them, [n, s]."""
    model, from_layers = work.model, work.stages.head_input
    positions, columns, depth = products.head_product(work)
    transform = _operations((model.head_transform * positions / work.layout.sequence_slices, depth, model.hidden))
    trains_transform = (model.head_transform * model.trains_transform)[:, None]
    of_logits = 1 + model.trains_output[:, None] + np.maximum(from_layers, trains_transform)
    of_transform = 1 + trains_transform + from_layers
    return of_logits * _operations((positions, columns, depth))[:, None] + of_transform * transform[:, None]


def _comparison(work: StepWorkload) -> Array:
    """Operations of the comparison of layers with a teacher's, [n]: of the projection of hidden states, forward and
    backward; of scores, both models' in the forward pass and again in the backward pass, and two gradients."""
    compared, model, found = work.comparison, work.model, np.zeros_like(work.step.sequences)
    positions = work.step.micro_sequences * model.label_length
    for other in work.others:
        states = positions * compared.states
        found = found + compared.projects * 3 * _operations((states, other.model.hidden, model.hidden))
    heads = positions * model.query_dim / work.layout.tensor
    of_scores = _operations((heads, model.label_length, np.ones_like(heads)))
    return found + compared.scores * compared.layers * 6 * of_scores


def _operations(product: Product) -> Array:
    m, n, k = product
    found: Array = 2 * m * n * k
    return found


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
