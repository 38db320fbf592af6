"""Bytes that layers save for the backward passes of a rank, tensor by tensor, as autograd saves them."""

from itertools import chain

import numpy as np

from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.products import hidden_bytes, layer_products, norm_tensors
from pretrain.plan.estimate.shapes import KERNELS
from pretrain.plan.estimate.workload import LayerStack, StepWorkload


def saved_by_layers(work: StepWorkload) -> tuple[Array, Array, Array]:
    """Bytes that layers save for all micro-batches in flight, and bytes beside them while one layer is recomputed,
    whose input is among those saved, without gradients and with those of its feed-forward layer; what later stacks
    saved of the micro-batch is free by then. [n, s] each."""
    model, stages, recompute = work.model, work.stages, work.step.recompute
    full, selective = (recompute == 2)[:, None], (recompute == 1)[:, None]
    saved, recomputed, with_gradients, behind = (np.zeros_like(stages.count) for _ in range(4))
    for stack in reversed(work.stacks):
        last = stack is work.stacks[-1]
        inputs = hidden_bytes(work, stack.length)[:, None]
        of_trained, of_frozen = (layer_bytes(work, stack, trained)[:, None] for trained in (True, False))
        trained_layers = stack.trained_layers
        of_layer = np.where(trained_layers > 0, of_trained, of_frozen)
        ends = stages.predicts if last else stages.embeds
        norm = inputs * (model.final_norm * stack.ends_in_norm * norm_tensors(work))[:, None] * ends
        of_layers = trained_layers * of_trained + (stack.backward_layers - trained_layers) * of_frozen
        beside = np.zeros_like(stack.length)
        for part in stack.parts:
            beside = beside + part.kept_when_recomputed(work, stack)
        # The uses of a last layer that reads the one before it are recomputed together.
        uses = np.where(stages.predicts * last > 0, np.maximum(model.last_layer_uses, 1)[:, None], 1.0)
        of_inputs = np.maximum(stack.backward_layers - (uses - 1), 0) * (inputs + beside[:, None])
        of_uses = stages.predicts * last * selective * _made_for_uses(work, stack)[:, None]
        of_stack = (np.where(full, of_inputs, of_layers) + of_uses) / work.layout.virtual[:, None]
        behind, freed = behind + of_stack, behind
        # What a decoder reads; on the first stage, if layers are not recomputed, the stream that both were in, too.
        encoded = hidden_bytes(work, stack.encoder_length)[:, None] * (1 + np.where(full, 0.0, stages.embeds))
        of_stack = of_stack + np.where(stack.backward_layers > 0, encoded, 0.0)
        if not last:  # the last norm lies with the head
            of_stack = of_stack + np.where(full | (stack.backward_layers == 0), 0.0, norm)
        in_flight = work.in_flight * stages.in_flight_share
        if last:  # of layers behind the last chunk's, one micro-batch is
            in_flight = np.where(model.further[:, None] > 0, work.layout.virtual[:, None], in_flight)
        saved = saved + of_stack * in_flight
        freed_before = _freed_before_core(work, stack)
        core = core_bytes(work, stack, work.attention.max_score_share)[:, None] - freed_before
        gradients, softmax = (part(work, stack)[:, None] for part in (_feed_forward_gradients, _score_gradients))
        again = np.where(full, uses * of_layer - inputs + norm, 0.0)
        of_one = np.where(selective, core, again) - freed
        if stack is work.stacks[0]:  # with it what is beside it, when the inputs of the layers behind it are free
            behind_first = np.maximum(stack.backward_layers / work.layout.virtual[:, None] - 1, 0) * inputs
            beside_first = bytes_beside_first(work)[:, None] * stages.trains_embedding
            of_one = np.where(
                full & (beside_first > 0), np.maximum(of_one, of_one + beside_first - behind_first), of_one
            )
        recomputed = np.maximum(recomputed, np.where(stack.backward_layers > 0, of_one, 0.0))
        in_attention = np.where(selective, core, again - freed_before) + softmax - freed
        in_backward = np.maximum.reduce([of_one, again + gradients - freed, in_attention])
        with_gradients = np.maximum(with_gradients, np.where(stack.backward_layers > 0, in_backward, 0.0))
        saved = saved + _shared_score_masks(work, stack)
    return saved, recomputed, with_gradients


def bytes_beside_first(work: StepWorkload) -> Array:
    """Bytes of a micro-batch, [n], that a linear layer beside the first layer keeps: its positions side by side, their
    product, and the sum that is normalized."""
    positions = work.model.positions_beside_first
    norm, masks = work.kernels.norm_bytes, work.kernels.dropout_bytes
    return (
        (positions > 0)
        * hidden_bytes(work, work.stacks[0].length)
        * (positions + 2 + masks / work.step.activation_bytes + norm / work.step.activation_bytes)
    )


def _made_for_uses(work: StepWorkload, stack: LayerStack) -> Array:
    """Bytes of a micro-batch, [n], that the uses of a last layer which reads the one before it keep besides, where
    attention is recomputed: in each the product that keys and values are of, and once states with absolute
    positions."""
    model, positions = work.model, work.step.micro_sequences * stack.length / work.layout.context
    products = model.last_layer_uses * 3 * model.query_dim / work.layout.tensor * positions * work.step.activation_bytes
    return products + (model.last_layer_uses > 0) * hidden_bytes(work, stack.length)


def _feed_forward_gradients(work: StepWorkload, stack: LayerStack) -> Array:
    """Bytes, [n], that the backward pass of a feed-forward layer, the first of a layer, has beside all that the layer
    keeps: the gradients of its output and of what lies between its matrices."""
    positions = work.step.micro_sequences * stack.length / work.layout.context
    between = stack.ffn * np.where(work.model.gated, 2, 1) / work.layout.tensor
    of_one = positions * work.step.activation_bytes * between
    for part in stack.parts:
        of_one = np.maximum(of_one, part.gradient_bytes(work, stack))
    return hidden_bytes(work, stack.length) + of_one


def _score_gradients(work: StepWorkload, stack: LayerStack) -> Array:
    """Bytes, [n], that the backward pass of written scores has beside what the layer keeps, when the softmax's is
    made."""
    pairs = work.step.micro_sequences * work.model.heads * np.square(stack.length)
    of_pair = work.attention.score_gradient_bytes - work.attention.freed_score_bytes
    return np.maximum(of_pair, 0.0) * pairs / (work.layout.tensor * work.layout.context)


def layer_bytes(work: StepWorkload, stack: LayerStack, trained: bool = True) -> Array:
    """Bytes that one layer keeps of a micro-batch, [n], where at most selective recomputation applies: the mean over
    layers or, under full recomputation, the layer with the most scores. `trained`: whether its weights are; frozen ones
    need no inputs, but LoRA does."""

    def keeps(product: str) -> Array:
        return np.where(trained | (stack.lora_rank(product) > 0), 1.0, 0.0)

    model, layout, kernels = work.model, work.layout, work.kernels
    width, recompute, slices = work.step.activation_bytes, work.step.recompute, layout.sequence_slices
    positions = work.step.micro_sequences * stack.length / layout.context
    queries, keys = model.query_dim, model.key_dim
    # Inputs of norms, and outputs that something is made of; under sequence parallelism gathered again for the backward
    # pass.
    crossing = np.where(stack.encoder_length > 0, 1.0, 0.0)
    norm_tensors, norms = kernels.norm_bytes / width, model.layer_norms
    outside = (2 + norms + 2 * crossing + (norms + crossing) * norm_tensors) * model.hidden / slices
    unkept = 2 - keeps("qkv") - keeps("fc1") + crossing * (1 - keeps("cross_q"))
    outside = outside - unkept * model.hidden / slices
    # An adapter's input, its features, and what GELU makes of them.
    adapter = (model.adapter_dim > 0) * model.hidden + 2 * model.adapter_dim
    outside = outside + (2 + crossing) * adapter / slices
    # Flash attention keeps its output itself.
    keeps_output = np.where(work.attention.score_bytes > 0, keeps("projection"), 1.0)
    outputs = keeps_output * model.heads * model.value_dim
    instead = [found for part in stack.parts if (found := part.attention_bytes(work, stack)) is not None]
    # Attention that is recomputed keeps what biases were added to, of values too, which others copy anyway.
    biased = model.bias_copies * np.where(recompute == 1, 2.0, 1.0)
    attention = (0.0 if instead else queries + 2 * keys + biased) + outputs
    copied = (model.kv_heads > 1) & model.grouped  # a group's queries have keys behind them: copied
    copies = copied * queries * np.maximum(model.qk_norm, recompute == 1)
    attention = attention + copies + model.qk_norm * (queries + 2 * keys + (queries + keys) * norm_tensors)
    # A copy in fp32, and this divided by its root mean square; what attention reads, if it is recomputed.
    over_all = 1 + 4 / width + (recompute == 1)
    attention = attention + model.all_heads_norm * (queries + keys) * over_all
    attention = attention + crossing * (2 * queries + 2 * keys * stack.encoder_length / stack.length)
    feed_forward = (kernels.ffn_tensors - (1 - keeps("fc2")) * kernels.fc2_input_tensors) * stack.active_ffn
    inputs = positions * width * (outside + (attention + feed_forward) / layout.tensor)
    masks = positions * kernels.dropout_bytes * (2 + crossing) * model.hidden / slices
    masks = masks + positions * kernels.ffn_dropout_bytes * stack.ffn / layout.tensor
    masks = masks + positions * kernels.lora_dropout_bytes / slices
    masks = masks + positions * kernels.lora_split_dropout_bytes / layout.tensor
    longer = np.maximum(1.0, stack.encoder_length / stack.length)  # an upper bound: keys and values have the encoder's
    masks = masks + crossing * positions * kernels.lora_cross_dropout_bytes * longer
    share = np.where(recompute == 2, work.attention.max_score_share, work.attention.score_share)
    # Of grouped queries, keys and values not what their product gave, but what is made of it alone.
    replaced = np.where(model.grouped, positions * width * (queries + 2 * keys) / layout.tensor, 0.0)
    cross_score_bytes = work.attention.cross_score_bytes
    row_bytes = np.where(cross_score_bytes > 0, stack.encoder_length * cross_score_bytes, 4.0)
    cross_scores = crossing * positions * model.heads / layout.tensor * row_bytes
    core = np.where(recompute == 1, 0.0, core_bytes(work, stack, share) - replaced + cross_scores)
    core = instead[0] if instead else core
    every = inputs + core + masks + 16 * positions / slices + 2 * _distance_vectors(work)
    for part in stack.parts:
        every = every + part.kept_bytes(work, stack, keeps)
    # The layer's input; of its products those of queries and values, a gate or the first of two, and the last.
    products = 2 * model.hidden / slices + (2 * queries + keys + stack.ffn) / layout.tensor
    keeps_products = kernels.keeps_products * (recompute == 1) > 0
    return np.where(keeps_products, positions * width * products, every)


def core_bytes(work: StepWorkload, stack: LayerStack, share: Array) -> Array:
    """Bytes that one layer keeps of a micro-batch, [n], between its queries, keys and values and the output of
    attention. `share` [n]: share of the keys whose scores are written out."""
    model, layout, attention, kernel = work.model, work.layout, work.attention, work.kernels.attention
    width, queries = work.step.activation_bytes, model.query_dim
    positions = work.step.micro_sequences * stack.length / layout.context
    # With fewer heads than context ranks, several ranks get the same head.
    keys = np.maximum(model.key_dim, np.where(layout.context > 1, layout.tensor * layout.context * model.head_dim, 0))
    # Where the kernel does not take grouped keys, each key's queries get a copy of it.
    grouped = queries + 2 * (keys + attention.copies_grouped_keys * (queries - keys))
    rotated = np.where(model.grouped, grouped, 2 * queries * model.rotary)
    # Exchanged between context ranks for others, which are kept alone; so is what attention made of them.
    exchanged = np.where(layout.context > 1, np.where(model.grouped, queries + grouped, queries), rotated)
    copies = exchanged + attention.key_copies * 2 * queries
    angles = positions * 2 * model.rotary_dim * work.kernels.angle_bytes
    # Sums of rows for the softmax's backward pass; of plain attention, and where scores are written out, probabilities.
    heads = positions * model.heads / layout.tensor
    score_bytes = np.where(kernel == KERNELS.index("unfused"), 4 + width + 1 + width, width * 2 + 1)
    scores = np.where(kernel < KERNELS.index("flash1"), heads * stack.length * score_bytes, heads * 4)
    scaled = np.where(model.grouped | (model.rotary > 0), 0.0, model.head_dim)  # queries that are no copy already
    written = heads * (stack.length * share * attention.score_bytes + (scaled + model.kept_distance_rows) * width)
    scores = np.where(attention.score_bytes > 0, written, scores)
    scores = scores + work.kept_score_biases * heads * stack.length * width
    scores = scores + positions / work.step.micro_sequences * stack.length * share * attention.pair_bytes
    return positions * width * copies / layout.tensor + angles + scores + _distance_vectors(work) / layout.context


def _distance_vectors(work: StepWorkload) -> Array:
    """Bytes of the keys, or of the queries, that a layer makes of the rows of a distance table, [n]."""
    model = work.model
    rows = model.distance_rows * (model.distance_linears > 0)
    return rows * model.query_dim / work.layout.tensor * work.step.activation_bytes


def _shared_score_masks(work: StepWorkload, stack: LayerStack) -> Array:
    """Bytes of the score masks that all layers of a rank share, [n, s]: in all micro-batches, or where rows have
    padding in each of them, for each row."""
    heads = work.model.heads / (work.layout.tensor * work.layout.context)
    of_mask = heads * stack.length**2 * work.step.activation_bytes
    of_rows = (work.attention.masks_of_rows * work.step.micro_sequences)[:, None] * work.in_flight
    masks = np.minimum(work.attention.shared_score_masks[:, None], stack.layers)
    return masks * of_mask[:, None] * np.where(work.attention.masks_of_rows[:, None] > 0, of_rows, 1.0)


def shared_gradients(work: StepWorkload) -> Array:
    """Bytes of the gradients of weights that layers share, [n]: their sum so far and, of the largest matrix, the next
    term and the next sum; less what the first layer to make such a sum has freed by then."""
    most: Array = np.zeros_like(work.model.hidden)
    for stack in work.stacks:
        of_parts = chain.from_iterable(part.products(work, stack) for part in stack.parts)
        sizes = [n * k for _, n, k in (*layer_products(work, stack).values(), *(product for _, product in of_parts))]
        gradients = work.step.activation_bytes * (sum(sizes, np.zeros_like(most)) + 2 * np.maximum.reduce(sizes))
        most = np.maximum(most, gradients - layer_bytes(work, stack))
    trained: Array = most * (sum(stack.trained_layers.sum(axis=1) for stack in work.stacks) > 0)
    return work.model.shared_layers * trained


def _freed_before_core(work: StepWorkload, stack: LayerStack) -> Array:
    """Bytes that a layer keeps, [n, s], and that are free when its attention is recomputed: those of its feed-forward
    layer, and with that one's norm half of what lies outside."""
    layout, step, kernels = work.layout, work.step, work.kernels
    positions = step.micro_sequences * stack.length / layout.context
    is_trained = stack.trained_layers > 0
    keeps_fc1, keeps_fc2 = (is_trained | (stack.lora_rank(name)[:, None] > 0) for name in ("fc1", "fc2"))
    norms = keeps_fc1 + (work.model.layer_norms / 2 * norm_tensors(work))[:, None]
    outside = norms * (work.model.hidden / layout.sequence_slices)[:, None]
    tensors = kernels.ffn_tensors[:, None] - ~keeps_fc2 * kernels.fc2_input_tensors[:, None]
    feed_forward = tensors * (stack.active_ffn / layout.tensor)[:, None]
    return (positions * step.activation_bytes)[:, None] * (outside + feed_forward)
