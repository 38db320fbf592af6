"""Seconds that one device computes: matrix products, attention, and what only moves memory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np

from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.entries import Array, Product
from pretrain.plan.estimate.product_seconds import product_seconds
from pretrain.plan.estimate.products import (
    adapter_products,
    cross_products,
    decoder_gradients,
    decoder_products,
    further_product,
    gradients_beside_first,
    head_product,
    kept_scores,
    layer_products,
    lora_products,
    positions_of,
    product_beside_first,
)
from pretrain.plan.estimate.shapes import KERNELS
from pretrain.plan.estimate.step_settings import GENERATIONS
from pretrain.plan.estimate.workload import LayerStack, StepWorkload

_SCORE_BYTES, _SCORE_KERNELS = 16, 8
"""bytes that are moved for each score that is only looked at, in fp32: it is written, masked in place, and read again;
and kernels of a layer"""


@dataclass(frozen=True)
class Passes:
    """Seconds of one micro-batch in the layers of each stage, [n, s]."""

    forward: Array
    backward: Array
    repeated: Array
    """part of `forward` that is computed again in the backward pass"""


def layers(work: StepWorkload, c: Constants, stack: LayerStack) -> Passes:
    """Seconds of the layers of `stack` on one rank of each stage."""
    model, layout, step = work.model, work.layout, work.step
    crosses = stack.encoder_length > 0
    crossing: Array = crosses.astype(np.float64)
    always: Array = np.ones(len(step.fp8))
    products = {name: (product, always) for name, product in layer_products(work, stack).items()}
    has_ffn = np.where(stack.ffn > 0, 1.0, 0.0)
    products |= {name: (products[name][0], has_ffn) for name in ("fc1", "fc2")}
    if crosses.any():
        products |= {name: (product, crossing) for name, product in cross_products(work, stack).items()}
    forward, backward = np.zeros_like(model.hidden), np.zeros_like(stack.layers)
    for name, (product, share) in products.items():
        seconds = product_seconds(work, c, product, step.fp8)
        forward = forward + share * seconds.forward
        of_input, of_weight = stack.with_input_gradient(name), stack.with_weight_gradient(name)
        backward = backward + share[:, None] * seconds.gradient_seconds(of_input, of_weight)
    for name, product in chain.from_iterable(part.products(work, stack) for part in stack.parts):
        seconds = product_seconds(work, c, product, step.fp8)
        forward = forward + seconds.forward
        of_input, of_weight = stack.with_input_gradient(name), stack.with_weight_gradient(name)
        backward = backward + seconds.gradient_seconds(of_input, of_weight)
    for beside, input_gradient in _updates(work, stack, {name: product for name, (product, _) in products.items()}):
        seconds = product_seconds(work, c, beside, np.zeros_like(step.fp8))
        forward = forward + seconds.forward
        backward = backward + seconds.gradient_seconds(input_gradient, stack.backward_layers)
    for part in stack.parts:
        if (of_part := part.seconds(work, c, stack)) is not None:
            forward, backward = forward + of_part[0], backward + of_part[1]
    core, core_back = _attention(work, c, stack.length, stack.length, stack.keys)
    backward = backward + stack.with_input_gradient("core") * core_back[:, None]
    if crosses.any():
        keys = np.maximum(stack.encoder_length, 1)
        cross_core, cross_core_back = _attention(work, c, stack.length, keys, stack.encoder_length)
        core = core + crosses * cross_core
        backward = backward + stack.with_input_gradient("cross_core") * (crosses * cross_core_back)[:, None]
    # Norms, residuals and dropout see full hidden states; biases, activations and rotations what tensor ranks share.
    norm_passes = np.where(work.kernels.fused_norms > 0, c.norm_passes, c.plain_norm_passes)
    inner = (1 + model.gated) * stack.active_ffn + model.query_dim + 2 * model.key_dim
    moved = (
        positions_of(work, stack)
        * step.activation_bytes
        * (norm_passes * model.hidden / layout.sequence_slices + c.activation_passes * inner / layout.tensor)
    )
    plain = moved / (work.device.memory_bytes_per_s * c.memory_share) + c.operations * c.launch_s
    forward = forward + core + plain
    repeated = np.select([step.recompute == 2, step.recompute == 1], [forward, core], 0.0)
    forward = forward + _largest_scores(work, c, stack)
    return Passes(
        forward=stack.layers * forward[:, None],
        backward=backward + stack.backward_layers * (2 * plain)[:, None],
        repeated=stack.backward_layers * repeated[:, None],
    )


def _updates(work: StepWorkload, stack: LayerStack, products: Mapping[str, Product]) -> Iterator[tuple[Product, Array]]:
    """Products of adapters and of LoRA in a layer, for models that have them, and the layers in which their input has a
    gradient."""
    if (work.model.adapter_dim > 0).any():
        yield from ((product, stack.backward_layers) for product in adapter_products(work, stack))
    for name, product in products.items():
        if stack.lora_rank(name).any():
            by_a, by_b = lora_products(work, stack, name, product)
            yield by_a, stack.with_input_gradient(name)
            yield by_b, stack.backward_layers


def embedding(work: StepWorkload, c: Constants) -> Array:
    """Seconds of the embedding lookup, which only moves memory, and of a linear layer beside the first layer, forward
    and backward, [n, s]."""
    step, layout, stages = work.step, work.layout, work.stages
    positions = 8 * step.micro_sequences * work.stacks[0].length * (1 + work.model.further) / layout.context
    moved = positions * work.model.hidden * step.activation_bytes / layout.sequence_slices
    seconds = stages.embeds * (moved / (work.device.memory_bytes_per_s * c.memory_share))[:, None]
    beside_first = work.model.positions_beside_first > 0
    if beside_first.any():
        found = product_seconds(work, c, product_beside_first(work), np.zeros_like(step.fp8))
        of_all = found.forward[:, None] + found.gradient_seconds(*gradients_beside_first(work))
        seconds = seconds + stages.embeds * beside_first[:, None] * of_all
    return seconds


def head(work: StepWorkload, c: Constants) -> Array:
    """Seconds forward and backward of logits and loss, [n, s], which no precision computes in fp8."""
    positions, columns, depth = head_product(work)
    in_half, stages = np.zeros_like(columns), work.stages
    logits = product_seconds(work, c, (positions, columns, depth), in_half)
    trains_input = np.maximum(stages.head_input, (work.model.head_transform * work.model.trains_transform)[:, None])
    found = logits.forward[:, None] + logits.gradient_seconds(trains_input, work.model.trains_output[:, None])
    for product in decoder_products(work):
        seconds = product_seconds(work, c, product, in_half)
        found = found + seconds.forward[:, None] + seconds.gradient_seconds(*decoder_gradients(work))
    moved = c.loss_passes * positions * columns * 4
    found = found + (moved / (work.device.memory_bytes_per_s * c.memory_share))[:, None]
    joined = product_seconds(work, c, further_product(work), in_half)
    repeated = joined.forward * (work.step.recompute == 2)
    of_further = found + (joined.forward + joined.of_input + joined.of_weight + repeated)[:, None]
    of_all: Array = stages.predicts * (found + work.model.further[:, None] * of_further)
    return of_all


def comparison(work: StepWorkload, c: Constants) -> Array:
    """Seconds forward and backward of the comparison of layers with a teacher's, [n, s]: of the projection of hidden
    states, and of scores, which are taken to pass through memory as often as logits do."""
    compared, model, seconds = work.comparison, work.model, np.zeros_like(work.step.sequences)
    positions, always = work.step.micro_sequences * model.label_length, np.ones_like(work.stages.predicts)
    for other in work.others:
        product = positions * compared.states, other.model.hidden, model.hidden
        of_one = product_seconds(work, c, product, np.zeros_like(positions))
        seconds = seconds + compared.projects * (of_one.forward + of_one.gradient_seconds(always, always)[:, 0])
    scores = compared.layers * positions * model.label_length * model.heads / work.layout.tensor
    moved = c.loss_passes * compared.scores * scores * 4
    found: Array = seconds + moved / (work.device.memory_bytes_per_s * c.memory_share)
    return work.stages.predicts * found[:, None]


def update(work: StepWorkload, c: Constants) -> Array:
    """Seconds of the optimizer, [n, s]: gradients, moments and weights are read and written once. The ranks of a stage
    share Muon's matrices."""
    shares = work.layout.zero[:, None] > 0
    updated = np.where(shares, work.divided / work.layout.replicas[:, None], work.trained)
    speed = work.device.block_peak_flops * c.per_generation("matmul", work.device.generation)
    blocks = work.stages.block_flops / (work.layout.stage_ranks * speed)[:, None]
    return c.update_bytes * updated / (work.device.memory_bytes_per_s * c.memory_share)[:, None] + blocks


def _largest_scores(work: StepWorkload, c: Constants, stack: LayerStack) -> Array:
    """Seconds of scores that are written in fp32, masked, and read to find the largest, [n]."""
    scores, device = kept_scores(work, stack), work.device
    speed = device.peak_flops * c.batched_share * c.per_generation("matmul", device.generation)
    moved = _SCORE_BYTES * scores / (device.memory_bytes_per_s * c.memory_share)
    launches = work.step.keeps_scores * _SCORE_KERNELS * c.launch_s
    found: Array = 2 * work.model.head_dim * scores / speed + moved + launches
    return found


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
