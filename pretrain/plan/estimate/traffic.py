"""Seconds that messages between devices take, by the links that they go over."""

from dataclasses import dataclass

import numpy as np

from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.work import Array, Stack, Work


@dataclass(frozen=True)
class Links:
    """Bytes per second of one rank, [n], in a ring of the ranks that differ in one coordinate only."""

    tensor: Array
    context: Array
    replicas: Array
    pipeline: Array


def links(work: Work, c: Constants) -> Links:
    """Speed of the links. Ranks of a node are neighbours: tensor ranks first, then context, data and pipeline ranks. A
    ring that leaves the node shares its network devices with the rings beside it."""
    inside = work.link_bytes_per_s * c.link_share

    def ring(before: Array, ranks: Array) -> Array:
        within = np.clip(work.node / before, 1, ranks)
        outside = work.network_bytes_per_s * c.network_share * within
        return np.where(before * ranks <= work.node, inside, np.minimum(inside, outside))

    single = np.ones_like(work.tensor)
    return Links(
        tensor=ring(single, work.tensor),
        context=ring(work.tensor, work.context),
        replicas=ring(work.tensor, work.context * work.data),
        pipeline=np.where(work.world <= work.node, inside, work.network_bytes_per_s * c.network_share),
    )


def tensor(work: Work, c: Constants, at: Links, stack: Stack) -> Array:
    """Seconds of one layer's forward pass; the backward pass exchanges as much. Hidden states are summed over tensor
    ranks twice (three times in a layer that reads an encoder's): all-reduced or, under sequence parallelism, gathered
    and scattered."""
    positions = work.micro * stack.length / work.context
    sums = np.where(stack.memory_length > 0, 3.0, 2.0)
    moved = 2 * sums * positions * work.hidden * work.width * (work.tensor - 1) / work.tensor
    waits = 2 * sums * c.message_s * (work.tensor > 1)
    return c.tensor_exposed * (moved / at.tensor + waits)


def context(work: Work, c: Constants, at: Links, stack: Stack) -> Array:
    """Seconds of one layer's forward pass: queries, keys, values and outputs exchange positions for heads."""
    positions = work.micro * stack.length / work.context
    features = 2 * (work.heads + work.kv_heads) * work.head_dim / work.tensor
    moved = positions * features * work.width * (work.context - 1) / work.context
    return moved / at.context + 2 * c.message_s * (work.context > 1)


def pipeline(work: Work, c: Constants, at: Links) -> Array:
    """Seconds of one micro-batch on one stage, which sends hidden states on and gradients back for each chunk."""
    positions = work.micro * work.length / work.context
    moved = positions * work.hidden * work.width / work.slices
    there = c.pipeline_exposed * 2 * (moved / at.pipeline + c.message_s)
    return np.where(work.pipeline > 1, work.virtual * there, 0.0)


def exchange(work: Work, at: Links) -> tuple[Array, Array]:
    """Seconds of exchange between ranks that hold the same weights, [n, s] each: per step, for gradients and updated
    weights; and per micro-batch, for gradients if they are sharded (ZeRO-2), and for weights too (ZeRO-3)."""
    copies = work.context * work.data
    around = ((copies - 1) / copies / at.replicas)[:, None] * work.parameters
    gradients, weights, zero = work.gradient_bytes[:, None], work.width[:, None], work.zero[:, None]
    step = np.select([zero == 3, zero == 2, zero == 1], [0.0, weights, gradients + weights], 2 * gradients)
    micro = np.select([zero == 3, zero == 2], [2 * weights + gradients, gradients], 0.0)
    return around * step, around * micro
