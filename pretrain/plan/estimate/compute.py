"""Seconds that one device computes: matrix products, attention, and what only moves memory."""

from dataclasses import dataclass, replace

import numpy as np

from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.work import GENERATIONS, KERNELS, Array, Stack, Work

_TILE = (128, 256)


@dataclass(frozen=True)
class Passes:
    """Seconds of one micro-batch, [n]."""

    forward: Array
    backward: Array
    attention: Array
    """part of `forward` that selective recomputation repeats"""


def layer(work: Work, c: Constants, stack: Stack) -> Passes:
    """Seconds of one layer of `stack`, on one rank."""
    positions = work.micro * stack.length / work.context
    inner, keys = work.heads * work.head_dim, work.kv_heads * work.head_dim
    products = [
        (positions, (inner + 2 * keys) / work.tensor, work.hidden),
        (positions, work.hidden, inner / work.tensor),
        (positions, (1 + work.gated) * work.ffn / work.tensor, work.hidden),
        (positions, work.hidden, work.ffn / work.tensor),
    ]
    crosses = stack.memory_length > 0
    forward, backward = _products(work, c, products)
    if crosses.any():
        memory = work.micro * stack.memory_length / work.context
        once, twice = _products(
            work,
            c,
            [
                (positions, inner / work.tensor, work.hidden),
                (np.maximum(memory, 1), 2 * keys / work.tensor, work.hidden),
                (positions, work.hidden, inner / work.tensor),
            ],
        )
        forward, backward = forward + crosses * once, backward + crosses * twice
    core, core_back = _attention(work, c, stack.length, stack.length, stack.keys)
    if crosses.any():
        other, other_back = _attention(work, c, stack.length, np.maximum(stack.memory_length, 1), stack.memory_length)
        core, core_back = core + crosses * other, core_back + crosses * other_back
    # Norms, residuals and dropout see whole hidden states; biases, activations and rotations what tensor ranks share.
    norms = np.where(work.fused_norms > 0, c.norm_passes, c.plain_norm_passes)
    moved = (
        positions
        * work.width
        * (
            norms * work.hidden / work.slices
            + c.activation_passes * ((1 + work.gated) * work.ffn + inner + 2 * keys) / work.tensor
        )
    )
    plain = moved / (work.memory_bytes_per_s * c.memory_share) + c.operations * c.launch_s
    return Passes(forward + core + plain, backward + core_back + 2 * plain, core)


def embedding(work: Work, c: Constants) -> Array:
    """Seconds of the embedding lookup, forward and backward; it only moves memory."""
    moved = 8 * work.micro * work.stacks[0].length / work.context * work.hidden * work.width / work.slices
    return moved / (work.memory_bytes_per_s * c.memory_share)


def head(work: Work, c: Constants) -> Array:
    """Seconds forward and backward of logits and loss."""
    positions, rows = work.micro * work.labels / work.context, work.vocabulary / work.tensor
    forward, backward = _products(replace(work, fp8=np.zeros_like(rows)), c, [(positions, rows, work.embedding_dim)])
    moved = c.loss_passes * positions * rows * 4
    return forward + backward + moved / (work.memory_bytes_per_s * c.memory_share)


def update(work: Work, c: Constants) -> Array:
    """Seconds of the optimizer, [n, s]: gradients, moments and weights are read and written once."""
    copies = work.context * work.data
    own = work.parameters / np.where(work.zero > 0, copies, 1.0)[:, None]
    return c.update_bytes * own / (work.memory_bytes_per_s * c.memory_share)[:, None]


def _products(work: Work, c: Constants, products: list[tuple[Array, Array, Array]]) -> tuple[Array, Array]:
    """Seconds forward and backward of x[m, k] @ w[k, n]; backward is two products of other shapes."""
    forward, backward = np.zeros_like(work.hidden), np.zeros_like(work.hidden)
    for m, n, k in products:
        forward = forward + _product(work, c, m, n, k)
        backward = backward + _product(work, c, m, k, n) + _product(work, c, k, n, m)
        once, again = _rounding(work, c, m * k, k * n, m * n)
        forward, backward = forward + once, backward + again
    return forward, backward


def _rounding(work: Work, c: Constants, x: Array, weight: Array, out: Array) -> tuple[Array, Array]:
    """Seconds forward and backward of rounding so many elements to 8 bits, where other work does not do it in passing.
    The backward pass rounds again, and also transposes."""
    speed = work.memory_bytes_per_s * c.memory_share
    once, turning = work.fp8 * work.rounding_bytes, work.fp8 * (work.rounding_bytes > 0) * 2
    return once * (x + weight) / speed, (once + turning) * (x + weight + out) / speed


def _product(work: Work, c: Constants, m: Array, n: Array, k: Array) -> Array:
    """Seconds of one matrix product. Tiles run in waves, of which the last may be short, and each tile adds some depth
    to begin and end."""
    short, long = _TILE
    tiles = np.minimum(np.ceil(m / short) * np.ceil(n / long), np.ceil(m / long) * np.ceil(n / short))
    full = m * n / (short * long * work.processors)
    waves = full + c.wave_share * (np.ceil(tiles / work.processors) - full)
    flops = waves * work.processors * short * long * 2 * (k + c.depth)
    share = c.per_generation("matmul", work.generation)
    speed = work.peak_flops * share * np.where(work.fp8 > 0, 2 * c.fp8_share, 1.0)
    moved = (m * n + m * k + k * n) * work.width / (work.memory_bytes_per_s * c.memory_share)
    slower: Array = np.maximum(flops / speed, moved)
    return slower + c.launch_s


def _attention(work: Work, c: Constants, queries: Array, length: Array, keys: Array) -> tuple[Array, Array]:
    """Seconds forward and backward of softmax(q k) v: `keys` are what a query sees of `length`."""
    heads = work.micro * work.heads / (work.tensor * work.context)
    flops = 4 * heads * queries * work.head_dim
    flash = work.kernel >= KERNELS.index("flash1")
    names = KERNELS[KERNELS.index("flash1") :]
    hopper = work.generation >= GENERATIONS.index("hopper")
    share = np.ones_like(heads)
    for name in names:
        of_kernel = np.where(hopper, c[f"{name}_hopper"], c[f"{name}_ampere"])
        share = np.where(work.kernel == KERNELS.index(name), of_kernel, share)
    # A block of keys that is seen in part is computed whole.
    seen = np.minimum(keys + c.attention_block, length)
    fused = flops * seen / (work.peak_flops * share) + c.launch_s
    misaligned = np.where(work.head_dim % 8 > 0, c.misaligned, 1.0)
    speed = work.peak_flops * c.batched_share * c.per_generation("matmul", work.generation)
    passes = np.where(work.kernel == 0, c.score_passes, c.fused_score_passes)
    moved = passes * heads * queries * length * 2
    plain = misaligned * flops * length / speed + moved / (work.memory_bytes_per_s * c.memory_share) + 6 * c.launch_s
    return np.where(flash, fused, plain), np.where(flash, c.flash_backward * fused, 2 * plain)
