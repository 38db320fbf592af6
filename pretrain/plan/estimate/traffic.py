"""Bytes that ranks send to each other in a step, and the seconds that these take by the links that they go over.

Bytes are counted as in a ring: of n ranks, each sends (n - 1) / n of a tensor that is gathered, scattered or exchanged
all to all, and twice that of one that is all-reduced."""

from dataclasses import dataclass, fields

import numpy as np

from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.tensor_traffic import (
    comparison_bytes,
    decoder_bytes,
    embedding_bytes,
    gathered_bytes,
    head_bytes,
    layer_bytes,
    replicated_gradient_bytes,
)
from pretrain.plan.estimate.workload import LayerStack, StepWorkload


@dataclass(frozen=True)
class Links:
    """Bytes per second of one rank, [n], in a ring of the ranks that differ in one coordinate only."""

    tensor: Array
    context: Array
    replicas: Array
    expert_replicas: Array
    pipeline: Array


@dataclass(frozen=True, kw_only=True)
class WireBytes:
    """Bytes that a rank of each kind of stage sends in a step, by the ranks that it sends them to, [n, s]."""

    tensor: Array
    context: Array
    pipeline: Array
    """hidden states and their gradients, between neighboring stages"""
    replicas: Array
    """gradients and weights, between ranks with the same weights"""
    expert: Array
    """rows of tokens and their gradients, between ranks that share experts"""
    summed: Array
    """gradients of weights that several stages hold"""
    blocks: Array
    """ranges of Muon's matrices, between all ranks of a stage"""


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
        expert_replicas=ring(layout.expert_tensor * layout.expert, layout.expert_replicas),
        pipeline=np.where(layout.world <= device.per_node, inside, network),
    )


def tensor_seconds(work: StepWorkload, c: Constants, at: Links, moved: Array) -> Array:
    """Seconds to send `moved` bytes [n, s] to other tensor ranks, in messages as large as hidden states."""
    of_message = np.maximum(gathered_bytes(work, work.stacks[-1].length, work.model.hidden), 1.0)
    message_s = c.message_s * (work.layout.tensor > 1) / of_message
    seconds: Array = c.tensor_exposed * moved * (1 / at.tensor + message_s)[:, None]
    return seconds


def context_bytes(work: StepWorkload, stack: LayerStack) -> Array:
    """Bytes of one layer's forward pass, and of its backward pass: queries, keys, values and outputs exchange positions
    for heads."""
    model, step, ranks = work.model, work.step, work.layout.context
    positions = step.micro_sequences * stack.length / ranks
    features = (model.heads + model.kv_heads) * (model.head_dim + model.value_dim) / work.layout.tensor
    return positions * features * step.activation_bytes * (ranks - 1) / ranks


def context_passes(work: StepWorkload, stack: LayerStack) -> Array:
    """Exchanges of the layers of each stage for a micro-batch, [n, s]: in the forward pass, in the backward pass, and
    once more where attention or the layer is recomputed."""
    backward = np.where((work.step.recompute == 2)[:, None], stack.backward_layers, stack.with_input_gradient("core"))
    exchanges: Array = stack.layers + backward * np.where(work.step.recompute > 0, 2.0, 1.0)[:, None]
    return exchanges


def context(work: StepWorkload, c: Constants, at: Links, stack: LayerStack) -> Array:
    """Seconds of one layer's forward pass."""
    return context_bytes(work, stack) / at.context + 2 * c.message_s * (work.layout.context > 1)


def pipeline_bytes(work: StepWorkload) -> Array:
    """Bytes of one micro-batch, [n]: a stage sends hidden states on and gradients back for each chunk; of a teacher, no
    gradients."""
    layout, step = work.layout, work.step
    positions = step.micro_sequences * work.length / layout.context
    moved = positions * work.model.hidden * step.activation_bytes / layout.sequence_slices
    return np.where(layout.pipeline > 1, layout.virtual * (1 + step.trains) * moved, 0.0)


def pipeline(work: StepWorkload, c: Constants, at: Links) -> Array:
    """Seconds of one micro-batch on one stage."""
    messages = np.where(work.layout.pipeline > 1, work.layout.virtual * 2, 0.0)
    return c.pipeline_exposed * (pipeline_bytes(work) / at.pipeline + messages * c.message_s)


def expert_bytes(work: StepWorkload, stack: LayerStack) -> Array:
    """Bytes of the layers of each stage for a micro-batch, [n, s], between ranks that share experts."""
    share = (work.layout.expert - 1) / work.layout.expert
    repeats, total = (work.step.recompute == 2)[:, None], np.zeros_like(stack.layers)
    for part in stack.parts:
        forward, backward = (share * size for size in part.routed_bytes(work, stack))
        total = total + (stack.layers + repeats * stack.backward_layers) * forward[:, None]
        total = total + stack.backward_layers * backward[:, None]
    return total


def expert_seconds(work: StepWorkload, c: Constants, stack: LayerStack) -> Array:
    """Seconds of `expert_bytes`, [n, s], which nothing hides. Each rank sends an equal part to each other one: those of
    its node are reached by one link, and those of other nodes by another at the same time."""
    layout, device = work.layout, work.device
    near = np.clip(device.per_node / layout.expert_tensor, 1, layout.expert)  # expert ranks of a node, itself included
    others = np.maximum(layout.expert - 1, 1)
    inside = (near - 1) / others / (device.link_bytes_per_s * c.link_share)
    outside = (layout.expert - near) / others / (device.network_bytes_per_s * c.network_share)
    seconds = expert_bytes(work, stack) * np.maximum(inside, outside)[:, None]
    repeats = (work.step.recompute == 2)[:, None]
    messages = np.zeros_like(seconds)
    for part in stack.parts:
        forward, backward = part.routed_messages()
        messages = messages + forward * stack.layers + (backward + forward * repeats) * stack.backward_layers
    found: Array = seconds + c.message_s * (layout.expert > 1)[:, None] * messages
    return found


def replica_bytes(work: StepWorkload) -> tuple[Array, Array]:
    """Bytes between ranks that hold the same weights, [n, s] each: per step, for gradients and updated weights; and per
    micro-batch, for gradients if they are sharded (ZeRO-2), and for weights too (ZeRO-3)."""
    (step, micro), (of_experts, of_experts_micro) = _dense_bytes(work), _expert_replica_bytes(work)
    return step + of_experts, micro + of_experts_micro


def _dense_bytes(work: StepWorkload) -> tuple[Array, Array]:
    """`replica_bytes` of all weights but those of experts that are on ranks of their own."""
    trained = work.trained - np.where(work.layout.regroups_experts[:, None], work.expert_trained, 0.0)
    step, micro = _gradient_bytes(work)
    zero, weights = work.layout.zero[:, None], work.step.activation_bytes[:, None]
    gathered = np.where(zero == 3, work.step.weight_gathers[:, None] * weights, 0.0)
    for_logits = (zero == 3) * weights * work.tied_parameters
    ring = _ring_share(work.layout.replicas)
    return ring * step * trained, ring * (micro * trained + gathered * work.parameters + for_logits)


def _expert_replica_bytes(work: StepWorkload) -> tuple[Array, Array]:
    """`replica_bytes` of experts that are on ranks of their own."""
    step, micro = _gradient_bytes(work)
    held = work.layout.regroups_experts[:, None] * work.expert_trained
    held = _ring_share(work.layout.expert_replicas) * held
    return step * held, micro * held


def _gradient_bytes(work: StepWorkload) -> tuple[Array, Array]:
    """Bytes of each trained parameter, [n, 1], of which ranks send a share per step and per micro-batch."""
    zero = work.layout.zero[:, None]
    gradients, weights = work.step.exchanged_gradient_bytes[:, None], work.step.activation_bytes[:, None]
    summed = gradients * np.where(work.step.sums_everywhere > 0, 2.0, 1.0)[:, None]
    step = np.select([zero == 3, zero == 2, zero == 1], [0.0, weights, summed + weights], 2 * gradients)
    return step, np.select([zero == 3, zero == 2], [gradients, summed], 0.0)


def _ring_share(ranks: Array) -> Array:
    """Share of a tensor that each rank of a ring sends, [n, 1]."""
    return ((ranks - 1) / ranks)[:, None]


def exchange(work: StepWorkload, at: Links) -> tuple[Array, Array]:
    """Seconds of `replica_bytes`."""
    (step, micro), (of_experts, of_experts_micro) = _dense_bytes(work), _expert_replica_bytes(work)
    dense, sparse = at.replicas[:, None], at.expert_replicas[:, None]
    return step / dense + of_experts / sparse, micro / dense + of_experts_micro / sparse


def summed_bytes(work: StepWorkload) -> Array:
    """Bytes per step, [n, s], for the gradients of weights that several stages hold. DeepSpeed's ranks sum those of
    their own share only."""
    share = np.where(work.layout.deepspeed > 0, work.layout.replicas, 1.0) * work.layout.tensor
    return work.step.exchanged_gradient_bytes[:, None] * work.stages.summed_parameters / share[:, None]


def block_bytes(work: StepWorkload) -> Array:
    """Bytes per step, [n, s], of Muon's matrices, in fp32: to their owners, and of results to all ranks that update
    them. Where all data ranks update all (no ZeRO), and where tensor ranks hold copies, owners have their own and lack
    the others' parts. Those of an expert stay among the ranks that hold it."""
    layout, stages = work.layout, work.stages
    shares = (layout.zero > 0) & ((layout.replicas > 1) | (layout.expert_replicas > 1) | (layout.deepspeed > 0))
    total = np.zeros_like(stages.count)
    for values, split, ranks, replicas in (
        (stages.sharded_blocks - stages.expert_blocks, layout.tensor, layout.stage_ranks, layout.replicas),
        (stages.expert_blocks, layout.expert_tensor, layout.stage_ranks / layout.expert, layout.expert_replicas),
        (stages.replicated_blocks, np.ones_like(layout.tensor), layout.stage_ranks, layout.replicas),
    ):
        parts = split * np.where(shares, replicas, 1.0)  # that different ranks hold, of which the owner has one
        holders = ranks / parts
        given, returned = (parts - 1) / parts, holders - 1 / parts
        total = total + 4 * values * ((given + returned) / layout.stage_ranks)[:, None]
    return total


def wire_bytes(work: StepWorkload) -> WireBytes:
    """Bytes that a rank of each kind of stage sends in a step, for all models."""
    sent = list(map(_model_bytes, work.models))
    return WireBytes(**{f.name: sum(getattr(one, f.name) for one in sent) for f in fields(WireBytes)})


def _model_bytes(work: StepWorkload) -> WireBytes:
    stages, micro_batches = work.stages, work.micro_batches[:, None]
    repeats = (work.step.recompute == 2)[:, None]  # of the forward pass of layers
    tensor, context_sent, to_experts = (np.zeros_like(stages.count) for _ in range(3))
    for stack in work.stacks:
        tensor += layer_bytes(work, stack)
        to_experts += expert_bytes(work, stack)
        context_sent += context_bytes(work, stack)[:, None] * context_passes(work, stack)
    of_decoder, last = decoder_bytes(work), work.stacks[-1].backward_layers > 0  # recomputed with their layer
    tensor += stages.predicts * (of_decoder.forward[:, None] * (1 + repeats) + last * of_decoder.backward[:, None])
    for ends, has_gradient, end in (
        (stages.embeds, stages.trains_embedding, embedding_bytes(work)),
        (stages.predicts, stages.head_input, head_bytes(work)),
    ):
        tensor += ends * (end.forward[:, None] + has_gradient * end.backward[:, None])
    tensor += stages.predicts * comparison_bytes(work)[:, None]
    per_step, per_micro = replica_bytes(work)
    return WireBytes(
        tensor=micro_batches * tensor + replicated_gradient_bytes(work),
        context=micro_batches * context_sent,
        pipeline=micro_batches * pipeline_bytes(work)[:, None] * (stages.count > 0),
        replicas=per_step + micro_batches * per_micro,
        expert=micro_batches * to_experts,
        summed=summed_bytes(work),
        blocks=block_bytes(work),
    )
