"""Bytes that a rank sends to other tensor ranks. Counted as in a ring: see `traffic.py`."""

from itertools import chain

import numpy as np

from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.products import head_product
from pretrain.plan.estimate.workload import LayerStack, StepWorkload, TensorBytes


def tensor_bytes(work: StepWorkload, stack: LayerStack) -> TensorBytes:
    """Bytes of one layer. Tensor ranks sum hidden states twice (three times in a layer that reads an encoder's), and in
    the backward pass their gradients, where a layer that reads an encoder's sums the gradient of these too. A sum is an
    all-reduce or, under sequence parallelism, a reduce-scatter, with an all-gather before the next product, which the
    backward pass repeats."""
    shared, crosses = work.layout.sequence > 0, stack.encoder_length > 0
    sums = regathers = np.where(crosses, 3.0, 2.0)
    sent, encoder_sent = (
        gathered_bytes(work, length, work.model.hidden) for length in (stack.length, stack.encoder_length)
    )
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
        sum(
            (gathered_bytes(work, positions, stack.lora_rank(name)) for name, positions in linears),
            np.zeros_like(length),
        )
        for linears in (columns, rows)
    )
    of_parts = np.zeros_like(length)
    for part in stack.parts:
        of_parts = of_parts + part.update_rows(work, stack)
    of_features, of_inputs = (gathered_bytes(work, of_parts, 2 * stack.lora_rank(name)) for name in ("fc2", "fc1"))
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
            sent, once, again = (gathered_bytes(work, stack.length, width) for width in (work.model.hidden, *widths))
            return once - sent, again - sent
    return np.zeros_like(stack.length), np.zeros_like(stack.length)


def replicated_gradient_bytes(work: StepWorkload) -> Array:
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
    once = gathered_bytes(work, stack.length, work.model.hidden) * np.where(work.layout.sequence > 0, 1.0, 2.0)
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
    one = gathered_bytes(work, work.stacks[-1].length, work.model.hidden)
    sent = work.model.last_layer_uses * one
    repeated = np.where(shared, sent, 0.0)
    positions = np.where(shared & (sent > 0), one, 0.0)
    return TensorBytes(
        forward=repeated, backward=np.where(shared, sent, 2 * sent) + repeated + positions, repeated=repeated
    )


def embedding_bytes(work: StepWorkload) -> TensorBytes:
    """Bytes of the embedding of each stack: tensor ranks sum the rows that each looked up. Under sequence parallelism
    each keeps a slice, and gathers the gradient; what a source encoder makes is gathered, and its embedding has such
    a gradient, too."""
    sent = gathered_bytes(work, work.length, work.model.embedding_dim)
    of_source = np.where(work.layout.sequence > 0, gathered_bytes(work, work.source_length, work.model.hidden), 0.0)
    backward = np.where(work.layout.sequence > 0, sent, 0.0) + of_source
    forward = 2 * sent * work.model.embedding_lookups + of_source
    return TensorBytes(forward=forward, backward=backward, repeated=np.zeros_like(sent))


def head_bytes(work: StepWorkload) -> TensorBytes:
    """Bytes of the logits: the gradient of their input is summed. Under sequence parallelism the input is gathered, for
    the backward pass again unless logits are made in chunks of positions. The answers of a task head, which every
    tensor rank makes, are too few to count."""
    model, shared = work.model, work.layout.sequence > 0
    sent = np.where(model.answers > 0, 0.0, gathered_bytes(work, model.label_length, model.embedding_dim))
    sent = sent * (1 + model.further)
    positions = work.step.micro_sequences * model.label_length / work.layout.context
    repeated = np.where(shared & (positions <= work.kernels.logit_positions), sent, 0.0)
    backward = np.where(shared, sent, 2 * sent) + repeated
    return TensorBytes(forward=np.where(shared, sent, 0.0), backward=backward, repeated=repeated)


def comparison_bytes(work: StepWorkload) -> Array:
    """Bytes of the comparison of layers with a teacher's: under sequence parallelism the hidden states of both are
    gathered, and each rank keeps its slice of the gradient."""
    widths = sum((other.model.hidden for other in work.others), work.model.hidden)
    sent = work.comparison.states * gathered_bytes(work, work.model.label_length, widths)
    return np.where(work.layout.sequence > 0, sent, 0.0)


def gathered_bytes(work: StepWorkload, length: Array, width: Array) -> Array:
    """Bytes that a tensor rank sends, [n], when `width` features of a micro-batch's positions are gathered or
    scattered."""
    step, ranks = work.step, work.layout.tensor
    positions = step.micro_sequences * length / work.layout.context
    return positions * width * step.activation_bytes * (ranks - 1) / ranks
