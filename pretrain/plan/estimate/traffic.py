"""Seconds that messages between devices take, by the links that they go over."""

from dataclasses import dataclass

import numpy as np

from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.work import Array, Stack, Work


@dataclass(frozen=True)
class Links:
    """Bytes per second that one rank gets, [n], in a ring of the ranks that differ in one coordinate only."""

    tensor: Array
    context: Array
    replicas: Array
    pipeline: Array


def links(work: Work, c: Constants) -> Links:
    """Ranks of a machine are neighbours: tensor ranks first, then context, data and pipeline ranks. A ring that leaves
    the machine shares its network devices with the rings beside it."""
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
    """Of one layer forward; backward exchanges as much: two sums over tensor ranks of hidden states (with an encoder's
    to read, three), whole or, under sequence parallelism, gathered and scattered."""
    positions = work.micro * stack.length / work.context
    sums = np.where(stack.memory_length > 0, 3.0, 2.0)
    moved = 2 * sums * positions * work.hidden * work.width * (work.tensor - 1) / work.tensor
    waits = 2 * sums * c.message_s * (work.tensor > 1)
    return c.tensor_exposed * (moved / at.tensor + waits)


def context(work: Work, c: Constants, at: Links, stack: Stack) -> Array:
    """Of one layer forward: positions for heads, of queries, keys, values and outputs."""
    positions = work.micro * stack.length / work.context
    features = 2 * (work.heads + work.kv_heads) * work.head_dim / work.tensor
    moved = positions * features * work.width * (work.context - 1) / work.context
    return moved / at.context + 2 * c.message_s * (work.context > 1)


def pipeline(work: Work, c: Constants, at: Links) -> Array:
    """Of one micro-batch on one stage: its hidden states sent on, and their gradients back, of each chunk."""
    positions = work.micro * work.length / work.context
    moved = positions * work.hidden * work.width / work.slices
    there = c.pipeline_exposed * 2 * (moved / at.pipeline + c.message_s)
    return np.where(work.pipeline > 1, work.virtual * there, 0.0)


def exchange(work: Work, at: Links) -> tuple[Array, Array]:
    """[n, s] each, between the ranks that hold the same weights: seconds of a step, for gradients and updated weights;
    and of one micro-batch, for gradients that no rank may hold whole (ZeRO-2), and weights neither (ZeRO-3)."""
    copies = work.context * work.data
    around = ((copies - 1) / copies / at.replicas)[:, None] * work.parameters
    gradients, weights, zero = work.gradient_bytes[:, None], work.width[:, None], work.zero[:, None]
    step = np.select([zero == 3, zero == 2, zero == 1], [0.0, weights, gradients + weights], 2 * gradients)
    micro = np.select([zero == 3, zero == 2], [2 * weights + gradients, gradients], 0.0)
    return around * step, around * micro
