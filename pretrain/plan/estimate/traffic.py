"""Bytes that ranks send to each other in a step, and the seconds that these take by the links that they go over.

Bytes are counted as in a ring: of n ranks, each sends (n - 1) / n of a tensor that is gathered, scattered or exchanged
all to all, and twice that of one that is all-reduced."""

from dataclasses import dataclass, fields
from itertools import chain

import numpy as np

from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.products import head_product
from pretrain.plan.estimate.workload import LayerStack, StepWorkload, TensorBytes


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


def tensor_bytes(work: StepWorkload, stack: LayerStack) -> TensorBytes:
    """Bytes of one layer. Tensor ranks sum hidden states twice (three times in a layer that reads an encoder's), and in
    the backward pass their gradients, where a layer that reads an encoder's sums the gradient of these too. A sum is an
    all-reduce or, under sequence parallelism, a reduce-scatter, with an all-gather before the next product, which the
    backward pass repeats."""
    shared, crosses = work.layout.sequence > 0, stack.encoder_length > 0
    sums = regathers = np.where(crosses, 3.0, 2.0)
    sent, encoder_sent = (_gathered(work, length, work.model.hidden) for length in (stack.length, stack.encoder_length))
    of_parts, of_parts_back = np.zeros_like(sent), np.zeros_like(sent)
    for part in stack.parts:
        more, more_again = part.sums(work, stack)
        sums, regathers = sums + more, regathers + more_again
        more, more_back = part.sent_bytes(work, stack)
        of_parts, of_parts_back = of_parts + more, of_parts_back + more_back
    repeated = np.where(shared, regathers * sent + np.where(crosses, encoder_sent, 0.0), 0.0)
    encoder_gradient = np.where(crosses, np.where(shared, 1.0, 2.0) * encoder_sent, 0.0)
    of_table = _distance_table_bytes(work)
    instead, instead_again = _instead_of_input(work, stack)
    updates = _update_bytes(work, stack)
    repeated = repeated + np.where(shared, instead_again, 0.0) + updates.repeated
    beside = updates.forward + of_parts + np.where(crosses & shared, encoder_sent, 0.0) + np.where(shared, instead, 0.0)
    beside_back = updates.backward + of_parts_back + encoder_gradient + np.where(shared, 1.0, 2.0) * instead
    return TensorBytes(
        forward=2 * sums * sent + beside + of_table.forward,
        backward=2 * sums * sent + beside_back + repeated + of_table.backward,
        repeated=repeated + of_table.repeated,
    )


def _update_bytes(work: StepWorkload, stack: LayerStack) -> TensorBytes:
    """Bytes of the low-rank updates beside a layer's linears, of what A makes: tensor ranks sum it where they share
    the inputs of A, and its gradient where they share the outputs of B. Under sequence parallelism each has that of its
    own positions in between, and gathers it; of experts they sum that of all rows."""
    shared, has_ffn = work.layout.sequence > 0, np.where(stack.ffn > 0, 1.0, 0.0)
    length, crossing = stack.length, stack.encoder_length
    columns = (("qkv", length), ("fc1", has_ffn * length), ("cross_q", length * (crossing > 0)), ("cross_kv", crossing))
    rows = (("projection", length), ("fc2", has_ffn * length), ("cross_projection", length * (crossing > 0)))
    of_columns, of_rows = (
        sum((_gathered(work, positions, stack.lora_rank(name)) for name, positions in linears), np.zeros_like(length))
        for linears in (columns, rows)
    )
    of_parts = np.zeros_like(length)
    for part in stack.parts:
        of_parts = of_parts + part.update_rows(work, stack)
    of_features, of_inputs = (_gathered(work, of_parts, 2 * stack.lora_rank(name)) for name in ("fc2", "fc1"))
    repeated = np.where(shared, of_columns, 0.0)
    return TensorBytes(
        forward=np.where(shared, of_columns + of_rows, 2 * of_rows) + of_features,
        backward=np.where(shared, of_columns + of_rows, 2 * of_columns) + of_inputs + repeated,
        repeated=repeated,
    )


def _instead_of_input(work: StepWorkload, stack: LayerStack) -> tuple[Array, Array]:
    """Bytes by which what parts exchange is more than the layer's input, in place of which it is exchanged (negative
    where it is less): of one exchange, and of what is gathered again."""
    for part in stack.parts:
        widths = part.exchanged_widths(work)
        if widths is not None:
            sent, once, again = (_gathered(work, stack.length, width) for width in (work.model.hidden, *widths))
            return once - sent, again - sent
    return np.zeros_like(stack.length), np.zeros_like(stack.length)


def _replicated_gradient_bytes(work: StepWorkload) -> Array:
    """Bytes per step, [n, s], of the gradients of parts that ranks replicate, of low-rank updates, of a matrix
    before the logits or answers, and of what joins states of further predictions to embeddings, in fp32, each tensor
    rank's of its own positions."""
    ranks, model = work.layout.tensor, work.model
    of_value = (work.layout.sequence > 0) * 8 * (ranks - 1) / ranks
    before_head = model.head_transform * model.trains_transform * head_product(work)[2] * model.hidden
    of_head = of_value * (before_head + model.further * 2 * model.hidden**2)
    total = work.stages.predicts * of_head[:, None]
    for stack in work.stacks:
        for name, values in chain.from_iterable(part.replicated_values(work) for part in stack.parts):
            total = total + stack.with_weight_gradient(name) * (of_value * values)[:, None]
        total = total + stack.backward_layers * (of_value * _replicated_updates(work, stack))[:, None]
    return total


def _replicated_updates(work: StepWorkload, stack: LayerStack) -> Array:
    """Parameters of a layer's low-rank updates that tensor ranks hold of all features: A of linears whose outputs they
    share, and B of others. Those of experts have the gradient of all rows."""
    exist = {"fc1": stack.ffn > 0, "fc2": stack.ffn > 0}
    exist |= dict.fromkeys(("cross_q", "cross_kv", "cross_projection"), stack.encoder_length > 0)
    names = ("qkv", "projection", "fc1", "fc2", "cross_q", "cross_kv", "cross_projection")
    ranks = sum((stack.lora_rank(name) * exist.get(name, True) for name in names), np.zeros_like(stack.length))
    return ranks * work.model.hidden


def layer_bytes(work: StepWorkload, stack: LayerStack, gathers_again: bool = True) -> Array:
    """Bytes of the layers of each stage for a micro-batch, [n, s]. `gathers_again`: count the inputs that are gathered
    again for the gradients of weights."""
    one = tensor_bytes(work, stack)
    repeats = (work.step.recompute == 2)[:, None]
    forward = (stack.layers + repeats * stack.backward_layers) * one.forward[:, None]
    backward = stack.backward_layers * (one.backward - one.repeated)[:, None]
    again = gathers_again * stack.trained_layers * one.repeated[:, None]
    # Below the lowest update nothing reads the gradient of what queries, keys and values are made of.
    unread = np.where(repeats > 0, 0.0, stack.backward_layers - stack.with_input_gradient("qkv")).clip(min=0)
    once = _gathered(work, stack.length, work.model.hidden) * np.where(work.layout.sequence > 0, 1.0, 2.0)
    reads_input = all(part.exchanged_widths(work) is None for part in stack.parts)
    total: Array = forward + backward + again - reads_input * unread * once[:, None]
    return total


def _distance_table_bytes(work: StepWorkload) -> TensorBytes:
    """Bytes of one layer's linear layers on the rows of a distance table: its gradient is summed for each. Under
    sequence parallelism, ranks take slices of the table, and gather its gradient."""
    model, ranks, shared = work.model, work.layout.tensor, work.layout.sequence > 0
    rows = model.distance_rows * (model.distance_linears > 0)
    one = rows * model.hidden * work.step.activation_bytes * (ranks - 1) / ranks
    sent = model.distance_linears * one
    repeated = np.where(shared, sent, 0.0)
    return TensorBytes(forward=repeated, backward=np.where(shared, sent + one, 2 * sent) + repeated, repeated=repeated)


def decoder_bytes(work: StepWorkload) -> TensorBytes:
    """Bytes before the head, beside those of layers, where the last layer reads the states of the layer before it:
    these are the input of a linear layer in each of its uses. Under sequence parallelism, the gradient of absolute
    positions is gathered."""
    shared = work.layout.sequence > 0
    one = _gathered(work, work.stacks[-1].length, work.model.hidden)
    sent = work.model.decoder_uses * one
    repeated = np.where(shared, sent, 0.0)
    positions = np.where(shared & (sent > 0), one, 0.0)
    return TensorBytes(
        forward=repeated, backward=np.where(shared, sent, 2 * sent) + repeated + positions, repeated=repeated
    )


def embedding_bytes(work: StepWorkload) -> TensorBytes:
    """Bytes of the embedding of each stack: tensor ranks sum the rows that each looked up. Under sequence parallelism
    each keeps a slice, and gathers the gradient; what a source encoder makes is gathered, and its embedding has such
    a gradient, too."""
    sent = _gathered(work, work.length, work.model.embedding_dim)
    of_source = np.where(work.layout.sequence > 0, _gathered(work, work.source_length, work.model.hidden), 0.0)
    backward = np.where(work.layout.sequence > 0, sent, 0.0) + of_source
    forward = 2 * sent * work.model.embedding_lookups + of_source
    return TensorBytes(forward=forward, backward=backward, repeated=np.zeros_like(sent))


def head_bytes(work: StepWorkload) -> TensorBytes:
    """Bytes of the logits: the gradient of their input is summed. Under sequence parallelism the input is gathered, for
    the backward pass again unless logits are made in chunks of positions. The answers of a task head, which every
    tensor rank makes, are too few to count."""
    model, shared = work.model, work.layout.sequence > 0
    sent = np.where(model.answers > 0, 0.0, _gathered(work, model.label_length, model.embedding_dim))
    sent = sent * (1 + model.further)
    positions = work.step.micro_sequences * model.label_length / work.layout.context
    repeated = np.where(shared & (positions <= work.kernels.logit_positions), sent, 0.0)
    backward = np.where(shared, sent, 2 * sent) + repeated
    return TensorBytes(forward=np.where(shared, sent, 0.0), backward=backward, repeated=repeated)


def comparison_bytes(work: StepWorkload) -> Array:
    """Bytes of the comparison of layers with a teacher's: under sequence parallelism the hidden states of both are
    gathered, and each rank keeps its slice of the gradient."""
    widths = sum((other.model.hidden for other in work.others), work.model.hidden)
    sent = work.comparison.states * _gathered(work, work.model.label_length, widths)
    return np.where(work.layout.sequence > 0, sent, 0.0)


def tensor_seconds(work: StepWorkload, c: Constants, at: Links, moved: Array) -> Array:
    """Seconds to send `moved` bytes [n, s] to other tensor ranks, in messages as large as hidden states."""
    of_message = np.maximum(_gathered(work, work.stacks[-1].length, work.model.hidden), 1.0)
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
        (stages.sharded_blocks - stages.expert_blocks, layout.tensor, layout.of_stage, layout.replicas),
        (stages.expert_blocks, layout.expert_tensor, layout.of_stage / layout.expert, layout.expert_replicas),
        (stages.replicated_blocks, np.ones_like(layout.tensor), layout.of_stage, layout.replicas),
    ):
        parts = split * np.where(shares, replicas, 1.0)  # that different ranks hold, of which the owner has one
        holders = ranks / parts
        given, returned = (parts - 1) / parts, holders - 1 / parts
        total = total + 4 * values * ((given + returned) / layout.of_stage)[:, None]
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
        tensor=micro_batches * tensor + _replicated_gradient_bytes(work),
        context=micro_batches * context_sent,
        pipeline=micro_batches * pipeline_bytes(work)[:, None] * (stages.count > 0),
        replicas=per_step + micro_batches * per_micro,
        expert=micro_batches * to_experts,
        summed=summed_bytes(work),
        blocks=block_bytes(work),
    )


def _gathered(work: StepWorkload, length: Array, width: Array) -> Array:
    """Bytes that a tensor rank sends, [n], when `width` features of a micro-batch's positions are gathered or
    scattered."""
    step, ranks = work.step, work.layout.tensor
    positions = step.micro_sequences * length / work.layout.context
    return positions * width * step.activation_bytes * (ranks - 1) / ranks
