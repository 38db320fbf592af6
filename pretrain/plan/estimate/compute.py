"""Seconds that one device computes: matrix products, attention, and what only moves memory."""

from dataclasses import dataclass

import numpy as np

from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.workload import GENERATIONS, KERNELS, Array, LayerStack, StepWorkload

_TILE = (128, 256)
Product = tuple[Array, Array, Array]
"""Rows, columns and depth of a matrix product: x[rows, depth] @ w[depth, columns]"""


@dataclass(frozen=True)
class Passes:
    """Seconds of one micro-batch, [n]."""

    forward: Array
    backward: Array
    attention: Array
    """part of `forward` that selective recomputation repeats"""


def positions_of(work: StepWorkload, stack: LayerStack) -> Array:
    """Positions of a micro-batch that a rank computes in a layer of `stack`."""
    return work.step.micro_sequences * stack.length / work.layout.context


def layer_products(work: StepWorkload, stack: LayerStack) -> list[Product]:
    """Matrix products of a layer's forward pass on one rank, without attention and cross-attention."""
    model, tensor, positions = work.model, work.layout.tensor, positions_of(work, stack)
    products = [
        _qkv_product(work, stack),
        (positions, model.hidden, model.query_dim / tensor),
        (positions, (1 + model.gated) * model.ffn / tensor, model.hidden),
        (positions, model.hidden, model.ffn / tensor),
    ]
    if model.distance_linears.any():
        products.append((model.distance_rows, model.distance_features / tensor, model.hidden))
    return products


def _qkv_product(work: StepWorkload, stack: LayerStack) -> Product:
    model = work.model
    positions = positions_of(work, stack) * stack.key_length / stack.length  # queries of memory are left over
    return positions, (model.query_dim + 2 * model.key_dim) / work.layout.tensor, model.hidden


def decoder_products(work: StepWorkload) -> list[Product]:
    """Matrix products before the head, beside those of layers, where the last layer reads the states of the layer
    before it: keys and values of these, made with their queries in each of its uses."""
    uses = work.model.decoder_uses
    m, n, k = _qkv_product(work, work.stacks[-1])
    return [(m * uses, n, k)] if uses.any() else []


def convolution_product(work: StepWorkload) -> Product:
    """Matrix product of a convolution over three positions, for models that have one."""
    positions = positions_of(work, work.stacks[0]) / work.layout.sequence_slices
    return positions, work.model.hidden, 3 * work.model.hidden


def adapter_products(work: StepWorkload, stack: LayerStack) -> list[Product]:
    """Matrix products of a layer's adapters, for models that have them."""
    model, size = work.model, np.maximum(work.model.adapter_dim, 1)
    positions = (2 + (stack.encoder_length > 0)) * positions_of(work, stack) / work.layout.sequence_slices
    return [(positions, size, model.hidden), (positions, model.hidden, size)]


def cross_products(work: StepWorkload, stack: LayerStack) -> list[Product]:
    """Matrix products of the projections of cross-attention, for layers that have it."""
    model, tensor, positions = work.model, work.layout.tensor, positions_of(work, stack)
    encoder_positions = work.step.micro_sequences * stack.encoder_length / work.layout.context
    return [
        (positions, model.query_dim / tensor, model.hidden),
        (np.maximum(encoder_positions, 1), 2 * model.key_dim / tensor, model.hidden),
        (positions, model.hidden, model.query_dim / tensor),
    ]


def head_product(work: StepWorkload) -> Product:
    """Matrix product that makes the logits, or the answers of a task head."""
    model, layout = work.model, work.layout
    positions = work.step.micro_sequences * model.label_length / layout.context
    is_task = model.answers > 0
    columns = np.where(is_task, model.answers, model.vocabulary / layout.tensor)
    return positions, columns, np.where(is_task, model.hidden, model.embedding_dim)


def layer(work: StepWorkload, c: Constants, stack: LayerStack) -> Passes:
    """Seconds of one layer of `stack`, on one rank."""
    model, layout, step = work.model, work.layout, work.step
    positions = positions_of(work, stack)
    crosses = stack.encoder_length > 0
    forward, backward = _products(work, c, layer_products(work, stack), step.fp8)
    if crosses.any():
        cross_forward, cross_backward = _products(work, c, cross_products(work, stack), step.fp8)
        forward, backward = forward + crosses * cross_forward, backward + crosses * cross_backward
    adapted = model.adapter_dim > 0
    if adapted.any():
        down_up, down_up_back = _products(work, c, adapter_products(work, stack), np.zeros_like(step.fp8))
        forward, backward = forward + adapted * down_up, backward + adapted * down_up_back
    core, core_back = _attention(work, c, stack.length, stack.key_length, stack.keys)
    if crosses.any():
        keys = np.maximum(stack.encoder_length, 1)
        cross_core, cross_core_back = _attention(work, c, stack.length, keys, stack.encoder_length)
        core, core_back = core + crosses * cross_core, core_back + crosses * cross_core_back
    # Norms, residuals and dropout see full hidden states; biases, activations and rotations what tensor ranks share.
    norm_passes = np.where(work.kernels.fused_norms > 0, c.norm_passes, c.plain_norm_passes)
    inner = (1 + model.gated) * model.ffn + model.query_dim + 2 * model.key_dim
    moved = (
        positions
        * step.activation_bytes
        * (norm_passes * model.hidden / layout.sequence_slices + c.activation_passes * inner / layout.tensor)
    )
    plain = moved / (work.device.memory_bytes_per_s * c.memory_share) + c.operations * c.launch_s
    return Passes(forward + core + plain, backward + core_back + 2 * plain, core)


def embedding(work: StepWorkload, c: Constants) -> Array:
    """Seconds of the embedding lookup, which only moves memory, and of a convolution behind it, forward and
    backward."""
    step, layout = work.step, work.layout
    positions = 8 * step.micro_sequences * work.stacks[0].length / layout.context
    moved = positions * work.model.hidden * step.activation_bytes / layout.sequence_slices
    seconds: Array = moved / (work.device.memory_bytes_per_s * c.memory_share)
    if work.model.convolution.any():
        forward, backward = _products(work, c, [convolution_product(work)], np.zeros_like(step.fp8))
        seconds = seconds + work.model.convolution * (forward + backward)
    return seconds


def head(work: StepWorkload, c: Constants) -> Array:
    """Seconds forward and backward of logits and loss, which no precision computes in fp8."""
    positions, columns, depth = head_product(work)
    products = [(positions, columns, depth), *decoder_products(work)]
    forward, backward = _products(work, c, products, np.zeros_like(columns))
    moved = c.loss_passes * positions * columns * 4
    return forward + backward + moved / (work.device.memory_bytes_per_s * c.memory_share)


def update(work: StepWorkload, c: Constants) -> Array:
    """Seconds of the optimizer, [n, s]: gradients, moments and weights are read and written once."""
    updated = work.trained / np.where(work.layout.zero > 0, work.layout.replicas, 1.0)[:, None]
    return c.update_bytes * updated / (work.device.memory_bytes_per_s * c.memory_share)[:, None]


def _products(work: StepWorkload, c: Constants, products: list[Product], fp8: Array) -> tuple[Array, Array]:
    """Seconds forward and backward of x[m, k] @ w[k, n]; backward is two products of other shapes. `fp8`: 1 where
    products are in fp8."""
    forward, backward = np.zeros_like(work.model.hidden), np.zeros_like(work.model.hidden)
    for m, n, k in products:
        forward = forward + _product(work, c, (m, n, k), fp8)
        backward = backward + _product(work, c, (m, k, n), fp8) + _product(work, c, (k, n, m), fp8)
        rounding, rounding_back = _rounding(work, c, (m * k, k * n, m * n), fp8)
        forward, backward = forward + rounding, backward + rounding_back
    return forward, backward


def _rounding(
    work: StepWorkload, c: Constants, elements: tuple[Array, Array, Array], fp8: Array
) -> tuple[Array, Array]:
    """Seconds forward and backward of rounding the `elements` of inputs, weights and outputs to 8 bits, where other
    work does not do it in passing. The backward pass rounds again, and also transposes."""
    x, weight, out = elements
    speed, rounding_bytes = work.device.memory_bytes_per_s * c.memory_share, work.kernels.rounding_bytes
    rounded, transposed = fp8 * rounding_bytes, fp8 * (rounding_bytes > 0) * 2
    return rounded * (x + weight) / speed, (rounded + transposed) * (x + weight + out) / speed


def _product(work: StepWorkload, c: Constants, shape: Product, fp8: Array) -> Array:
    """Seconds of one matrix product [m, k] @ [k, n] of `shape` (m, n, k). Tiles run in waves, of which the last may be
    short, and each tile adds some depth to begin and end."""
    m, n, k = shape
    device = work.device
    short, long = _TILE
    tiles = np.minimum(np.ceil(m / short) * np.ceil(n / long), np.ceil(m / long) * np.ceil(n / short))
    full = m * n / (short * long * device.processors)
    waves = full + c.wave_share * (np.ceil(tiles / device.processors) - full)
    flops = waves * device.processors * short * long * 2 * (k + c.depth)
    share = c.per_generation("matmul", device.generation)
    speed = device.peak_flops * share * np.where(fp8 > 0, 2 * c.fp8_share, 1.0)
    moved = (m * n + m * k + k * n) * work.step.activation_bytes / (device.memory_bytes_per_s * c.memory_share)
    slower: Array = np.maximum(flops / speed, moved)
    return slower + c.launch_s


def _attention(work: StepWorkload, c: Constants, queries: Array, length: Array, keys: Array) -> tuple[Array, Array]:
    """Seconds forward and backward of softmax(q k) v: `keys` are what a query sees of `length`."""
    model, layout, device, kernel = work.model, work.layout, work.device, work.kernels.attention
    heads = work.step.micro_sequences * model.heads / (layout.tensor * layout.context)
    flops = 4 * heads * queries * model.head_dim
    flash = kernel >= KERNELS.index("flash1")
    names = KERNELS[KERNELS.index("flash1") :]
    hopper = device.generation >= GENERATIONS.index("hopper")
    share = np.ones_like(heads)
    for name in names:
        kernel_share = np.where(hopper, c[f"{name}_hopper"], c[f"{name}_ampere"])
        share = np.where(kernel == KERNELS.index(name), kernel_share, share)
    # A block of keys that is seen in part is computed in full.
    seen = np.minimum(keys + c.attention_block, length)
    fused = flops * seen / (device.peak_flops * share) + c.launch_s
    misaligned = np.where(model.head_dim % 8 > 0, c.misaligned, 1.0)
    speed = device.peak_flops * c.batched_share * c.per_generation("matmul", device.generation)
    passes = np.where(kernel == KERNELS.index("unfused"), c.score_passes, c.fused_score_passes)
    moved = passes * heads * queries * length * 2
    plain = misaligned * flops * length / speed + moved / (device.memory_bytes_per_s * c.memory_share) + 6 * c.launch_s
    return np.where(flash, fused, plain), np.where(flash, c.flash_backward * fused, 2 * plain)
