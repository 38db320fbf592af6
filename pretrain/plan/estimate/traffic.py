"""Seconds that messages between devices take, by the links that they go over."""

from dataclasses import dataclass

import numpy as np

from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.workload import Array, LayerStack, StepWorkload


@dataclass(frozen=True)
class Links:
    """Bytes per second of one rank, [n], in a ring of the ranks that differ in one coordinate only."""

    tensor: Array
    context: Array
    replicas: Array
    pipeline: Array


def links(work: StepWorkload, c: Constants) -> Links:
    """Speed of the links. Ranks of a node are neighbours: tensor ranks first, then context, data and pipeline ranks. A
    ring that leaves the node shares its network devices with the rings beside it."""
    layout, device = work.layout, work.device
    inside, network = device.link_bytes_per_s * c.link_share, device.network_bytes_per_s * c.network_share

    def ring(before: Array, ranks: Array) -> Array:
        within = np.clip(device.per_node / before, 1, ranks)
        return np.where(before * ranks <= device.per_node, inside, np.minimum(inside, network * within))

    return Links(
        tensor=ring(np.ones_like(layout.tensor), layout.tensor),
        context=ring(layout.tensor, layout.context),
        replicas=ring(layout.tensor, layout.replicas),
        pipeline=np.where(layout.world <= device.per_node, inside, network),
    )


def tensor(work: StepWorkload, c: Constants, at: Links, stack: LayerStack) -> Array:
    """Seconds of one layer's forward pass; the backward pass exchanges as much. Hidden states are summed over tensor
    ranks twice (three times in a layer that reads an encoder's): all-reduced or, under sequence parallelism, gathered
    and scattered."""
    step, ranks = work.step, work.layout.tensor
    positions = step.micro_sequences * stack.length / work.layout.context
    sums = np.where(stack.encoder_length > 0, 3.0, 2.0)
    moved = 2 * sums * positions * work.model.hidden * step.activation_bytes * (ranks - 1) / ranks
    waits = 2 * sums * c.message_s * (ranks > 1)
    return c.tensor_exposed * (moved / at.tensor + waits)


def context(work: StepWorkload, c: Constants, at: Links, stack: LayerStack) -> Array:
    """Seconds of one layer's forward pass: queries, keys, values and outputs exchange positions for heads."""
    model, step, ranks = work.model, work.step, work.layout.context
    positions = step.micro_sequences * stack.length / ranks
    features = 2 * (model.heads + model.kv_heads) * model.head_dim / work.layout.tensor
    moved = positions * features * step.activation_bytes * (ranks - 1) / ranks
    return moved / at.context + 2 * c.message_s * (ranks > 1)


def pipeline(work: StepWorkload, c: Constants, at: Links) -> Array:
    """Seconds of one micro-batch on one stage, which sends hidden states on and gradients back for each chunk."""
    layout, step = work.layout, work.step
    positions = step.micro_sequences * work.length / layout.context
    moved = positions * work.model.hidden * step.activation_bytes / layout.sequence_slices
    per_chunk = c.pipeline_exposed * 2 * (moved / at.pipeline + c.message_s)
    return np.where(layout.pipeline > 1, layout.virtual * per_chunk, 0.0)


def exchange(work: StepWorkload, at: Links) -> tuple[Array, Array]:
    """Seconds of exchange between ranks that hold the same weights, [n, s] each: per step, for gradients and updated
    weights; and per micro-batch, for gradients if they are sharded (ZeRO-2), and for weights too (ZeRO-3)."""
    replicas, zero = work.layout.replicas, work.layout.zero[:, None]
    around = ((replicas - 1) / replicas / at.replicas)[:, None] * work.parameters
    gradients, weights = work.exchanged_gradient_bytes[:, None], work.step.activation_bytes[:, None]
    step = np.select([zero == 3, zero == 2, zero == 1], [0.0, weights, gradients + weights], 2 * gradients)
    micro = np.select([zero == 3, zero == 2], [2 * weights + gradients, gradients], 0.0)
    return around * step, around * micro
