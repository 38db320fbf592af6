"""Matrix products of a step on one rank."""

import numpy as np

from pretrain.model_spec.logits import SCORES_OF_PART
from pretrain.plan.estimate.entries import Array, Product
from pretrain.plan.estimate.workload import LayerStack, StepWorkload


def positions_of(work: StepWorkload, stack: LayerStack) -> Array:
    """Positions of a micro-batch that a rank computes in a layer of `stack`."""
    return work.step.micro_sequences * stack.length / work.layout.context


def kept_scores(work: StepWorkload, stack: LayerStack) -> Array:
    """Scores of a layer that are computed once more to find the largest, [n], as `attention/largest_scores.py` does it:
    some queries at a time, with all keys up to theirs."""
    heads = work.step.micro_sequences * work.model.heads / (work.layout.tensor * work.layout.context)
    queries = np.clip(SCORES_OF_PART // (heads * stack.length), 1, stack.length)
    scores: Array = work.step.keeps_scores * heads * stack.length * (stack.length + queries) / 2
    return scores


def layer_products(work: StepWorkload, stack: LayerStack) -> dict[str, Product]:
    """Matrix products of a layer's forward pass on one rank by name, without attention, cross-attention and what its
    parts have beside these."""
    model, tensor, positions = work.model, work.layout.tensor, positions_of(work, stack)
    products = {
        "qkv": _qkv_product(work, stack),
        "projection": (positions, model.hidden, model.heads * model.value_dim / tensor),
        "fc1": (positions, (1 + model.gated) * stack.ffn / tensor, model.hidden),
        "fc2": (positions, model.hidden, stack.ffn / tensor),
    }
    if model.distance_linears.any():
        products["distances"] = (model.distance_rows, model.distance_features / tensor, model.hidden)
    return products


def _qkv_product(work: StepWorkload, stack: LayerStack) -> Product:
    model = work.model
    for part in stack.parts:
        product = part.qkv_product(work, stack)
        if product is not None:
            return product
    return positions_of(work, stack), (model.query_dim + 2 * model.key_dim) / work.layout.tensor, model.hidden


def decoder_products(work: StepWorkload) -> list[Product]:
    """Matrix products before the head, beside those of layers, where the last layer reads the states of the layer
    before it: keys and values of these, made with their queries in each of its uses."""
    uses = work.model.last_layer_uses
    m, n, k = _qkv_product(work, work.stacks[-1])
    return [(m * uses, n, k)] if uses.any() else []


def decoder_gradients(work: StepWorkload) -> tuple[Array, Array]:
    """1 on stages where these have a gradient of their input, and of their weight, [n, s]: as in the last layer."""
    last = work.stacks[-1]
    inputs, weights = last.with_input_gradient("qkv"), last.with_weight_gradient("qkv")
    return np.where(inputs > 0, 1.0, 0.0), np.where(weights > 0, 1.0, 0.0)


def product_beside_first(work: StepWorkload) -> Product:
    """Matrix product beside the first layer, for models that have one."""
    positions = positions_of(work, work.stacks[0]) / work.layout.sequence_slices
    return positions, work.model.hidden, work.model.positions_beside_first * work.model.hidden


def gradients_beside_first(work: StepWorkload) -> tuple[Array, Array]:
    """1 on stages where it has a gradient of its input, and of its weight, [n, s]."""
    of_weight = np.where(work.stacks[0].with_weight_gradient("qkv") >= work.stacks[0].layers, 1.0, 0.0)
    return work.stages.trains_embedding, of_weight


def further_product(work: StepWorkload) -> Product:
    """Matrix product that joins the states of one further prediction to embeddings, for models that have some."""
    positions = work.step.micro_sequences * work.model.label_length / work.layout.context
    return positions / work.layout.sequence_slices, work.model.hidden, 2 * work.model.hidden


def adapter_products(work: StepWorkload, stack: LayerStack) -> list[Product]:
    """Matrix products of a layer's adapters, for models that have them."""
    model, size = work.model, np.maximum(work.model.adapter_dim, 1)
    positions = (2 + (stack.encoder_length > 0)) * positions_of(work, stack) / work.layout.sequence_slices
    return [(positions, size, model.hidden), (positions, model.hidden, size)]


def cross_products(work: StepWorkload, stack: LayerStack) -> dict[str, Product]:
    """Matrix products of the projections of cross-attention by name, for layers that have it."""
    model, tensor, positions = work.model, work.layout.tensor, positions_of(work, stack)
    encoder_positions = work.step.micro_sequences * stack.encoder_length / work.layout.context
    return {
        "cross_q": (positions, model.query_dim / tensor, model.hidden),
        "cross_kv": (np.maximum(encoder_positions, 1), 2 * model.key_dim / tensor, model.hidden),
        "cross_projection": (positions, model.hidden, model.query_dim / tensor),
    }


def lora_products(work: StepWorkload, stack: LayerStack, name: str, product: Product) -> tuple[Product, Product]:
    """Matrix products of the update beside `product`: by A, and by B. What is not split like the weight, every tensor
    rank computes at its own positions."""
    (positions, columns, depth), rank = product, np.maximum(stack.lora_rank(name), 1)
    if name in ("fc1", "fc2"):  # layers of experts may have no other
        positions = positions * (stack.ffn > 0)
    own = positions / work.layout.sequence_slices
    if name in ("projection", "cross_projection", "fc2"):  # of which tensor ranks have features
        return (positions, rank, depth), (own, columns, rank)
    return (own, rank, depth), (positions, columns, rank)


def head_product(work: StepWorkload) -> Product:
    """Matrix product that makes the logits, or the answers of a task head."""
    model, layout = work.model, work.layout
    positions = work.step.micro_sequences * model.label_length / layout.context
    is_task = model.answers > 0
    columns = np.where(is_task, model.answers, model.vocabulary / layout.tensor)
    return positions, columns, np.where(is_task, model.hidden, model.embedding_dim)


def operations_of(product: Product) -> Array:
    """Operations of a product: a multiply-add is two."""
    m, n, k = product
    found: Array = 2 * m * n * k
    return found


def norm_tensors(work: StepWorkload) -> Array:
    """Tensors as large as its input that a norm keeps, [n]."""
    return 1 + work.kernels.norm_bytes / work.step.activation_bytes


def hidden_bytes(work: StepWorkload, length: Array) -> Array:
    """Bytes of a micro-batch's hidden states on a rank, [n]."""
    layout, step = work.layout, work.step
    positions = step.micro_sequences * length / layout.context
    return positions * work.model.hidden * step.activation_bytes / layout.sequence_slices
