"""Bytes that a rank holds at most, each part apart, of any number of layouts at once.

Weights, gradients and optimizer states are `plan/memory.py`'s. Activations are counted tensor by tensor, as autograd
saves them; `tests/multirank/test_activation_memory.py` holds the counts to what ranks measure."""

from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from pretrain.model_spec.logits import NOISE_ENTRIES
from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.held_in_forward import forward_bytes
from pretrain.plan.estimate.products import layer_products
from pretrain.plan.estimate.shapes import KERNELS
from pretrain.plan.estimate.workload import LayerStack, StepWorkload


@dataclass(frozen=True, kw_only=True)
class HeldBytes:
    """Bytes that a rank on a stage of each kind holds, [n, s]."""

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    """bytes saved for the backward passes of all micro-batches in flight"""
    working: Array
    """bytes saved of the layer that is recomputed, or of logits and loss, which never exist at the same time"""
    buffers: Array
    """bytes of weights while they are gathered, of messages in flight, of buckets of gradients, of what lives for a
    moment beside what is saved, and of what libraries and the allocator keep"""
    memory: Array
    """bytes of what layers have read of the rows before: of no model that is planned"""
    building: Array
    """bytes that building the model takes beyond all of these; 0: a step takes more"""

    @property
    def total(self) -> Array:
        return sum((getattr(self, name) for name in self.__dataclass_fields__), np.zeros_like(self.weights))

    @property
    def fullest(self) -> Array:
        """Bytes of the stage that holds the most, [n]."""
        most: Array = self.total.max(axis=1)
        return most

    @property
    def on_fullest(self) -> "HeldBytes":
        """Bytes by part on the fullest stage alone, [n, 1]."""
        stages = self.total.argmax(axis=1)[:, None]
        parts = {name: np.take_along_axis(getattr(self, name), stages, 1) for name in self.__dataclass_fields__}
        return HeldBytes(**parts)

    def of_fullest(self, index: int) -> dict[str, float]:
        """Bytes by part on the fullest stage of the layout at `index`."""
        stage = int(self.total[index].argmax())
        return {name: float(getattr(self, name)[index, stage]) for name in self.__dataclass_fields__}


def held_bytes(work: StepWorkload, c: Constants, overhead: bool = True) -> HeldBytes:
    """Bytes that each layout holds. `overhead`: include the device's own, which host memory does not have. With a
    second model, the states of both are there at once, and the activations of one: the pass of a generator is over when
    that of its model begins. That of a teacher keeps nothing of its layers, and is not counted."""
    of_model = [_model_bytes(one) for one in work.models]
    passes = of_model[0]
    for second, other in zip(of_model[1:], work.others, strict=True):
        takes = (other.step.trains > 0)[:, None] & (second.in_pass > passes.in_pass)
        names = ("activations", "working", "buffers", "split")
        passes = replace(
            passes, **{name: np.where(takes, getattr(second, name), getattr(passes, name)) for name in names}
        )
    weights, gradients, optimizer, built = (
        sum((getattr(one, name) for one in of_model), np.zeros_like(passes.weights))
        for name in ("weights", "gradients", "optimizer", "built")
    )
    library_bytes = c.overhead_gib * 2**30 if overhead else 0.0
    buffers = passes.buffers + library_bytes + (c.fragments * passes.split if overhead else 0.0)
    in_step = weights + gradients + optimizer + passes.activations + passes.working + buffers
    return HeldBytes(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=passes.activations,
        working=passes.working,
        buffers=buffers,
        memory=np.zeros_like(weights),
        building=np.where(built > 0, np.maximum(built + library_bytes - in_step, 0.0), 0.0),
    )


@dataclass(frozen=True, kw_only=True)
class _ModelBytes:
    """Bytes of one model, [n, s], without what libraries and the allocator keep. See `HeldBytes`."""

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    working: Array
    buffers: Array
    split: Array
    """bytes of what is made and released in each step, of which the allocator keeps fragments"""
    built: Array
    """bytes while the model is built; 0: no more than a step takes"""

    @property
    def in_pass(self) -> Array:
        """Bytes of the model's pass alone."""
        return self.activations + self.working + self.buffers


def _model_bytes(work: StepWorkload) -> _ModelBytes:
    layout, step, parameters = work.layout, work.step, work.parameters
    replicas, zero = layout.replicas[:, None], layout.zero[:, None]
    shards_weights = zero == 3
    resident = np.where(shards_weights, parameters / replicas, parameters)
    saved, recomputed, with_gradients = _saved_by_layers(work)
    saved = saved + _further_bytes(work)
    saved_loss, loss, left = (work.stages.predicts * part[:, None] for part in loss_bytes(work))
    working = np.maximum(recomputed, saved_loss)
    masks = work.kernels.dropout_bytes / step.activation_bytes
    embedded = _hidden(work, work.stacks[0].length) * (masks + work.model.embedding_norm * _norm_tensors(work))
    # Three positions side by side, their product, and the sum that is normalized; recomputed with the first layer.
    of_three = (work.model.convolution > 0) & (step.recompute < 2)
    embedded = embedded + of_three * _hidden(work, work.stacks[0].length) * (
        5 + masks + work.kernels.norm_bytes / step.activation_bytes
    )
    embedded = embedded * (1 + (work.source_length > 0))  # a source encoder has an embedding of its own
    first = embedded[:, None] * work.stages.trains_embedding * work.in_flight
    layers = np.maximum(sum((stack.layers for stack in work.stacks), np.zeros_like(work.stages.count)), 1)
    # Stage 3 gathers the weights of a layer, and of the next one.
    gathered_weights = 2 * step.activation_bytes[:, None] * (parameters - resident) / layers
    gathered = np.where(shards_weights, gathered_weights, 0.0)
    messages = 2 * _hidden(work, work.length)[:, None] * (layout.pipeline > 1)[:, None]
    # Under DeepSpeed, a bucket is copied while layers are on their way back. At the end, only the embedding is left of
    # a micro-batch, beside what is saved of others that are in flight.
    table = (step.table_copies * work.model.vocabulary / layout.tensor * work.model.embedding_dim)[:, None]
    at_end = table * work.stages.embeds - (saved + first) / np.maximum(work.in_flight, 1) - gathered
    # No bucket is full when the first layer begins its backward pass.
    bucket_copies = step.bucket_copy_bytes[:, None]
    in_layers = np.maximum(with_gradients, recomputed + bucket_copies)
    # A tied embedding's gradient waits for that of its lookup.
    in_layers = (
        in_layers + (work.model.trains_output * work.kernels.head_gradient_bytes)[:, None] * work.tied_parameters
    )
    in_layers = in_layers + _shared_gradients(work)[:, None]
    in_forward = forward_bytes(work, saved + first, messages)
    compared = work.stages.predicts * _compared_bytes(work)[:, None]
    compared = compared + (compared > 0) * left
    copies = np.maximum(np.maximum.reduce([in_layers, at_end, loss, in_forward, compared]) - working, 0.0)
    frozen = step.weight_bytes[:, None] * (parameters - work.trained)
    builds = (parameters > 0) & (step.build_bytes[:, None] > 0)
    return _ModelBytes(
        weights=step.weight_bytes[:, None] * parameters,
        gradients=step.gradient_bytes[:, None] * np.where(zero >= 2, work.divided, work.trained),
        optimizer=step.main_bytes[:, None] * np.where(zero >= 1, work.divided, work.trained)
        + step.moment_bytes[:, None] * work.moments,
        activations=saved + first + _kept_states(work),
        working=working,
        buffers=gathered + messages + step.bucket_bytes[:, None] + copies,
        split=saved + np.maximum(working, loss),
        built=np.where(builds, step.build_bytes[:, None] * work.trained + frozen, 0.0),
    )


def _further_bytes(work: StepWorkload) -> Array:
    """Bytes that further predictions save for all micro-batches in flight beside their layers and logits, [n, s]: the
    embeddings that travel with the states of each chunk; and of the one micro-batch in the last chunk, unless
    recomputed, these behind the layers, and joined to states for each projection."""
    model, stages = work.model, work.stages
    travelling = (model.further * _hidden(work, model.label_length))[:, None]
    kept = np.where(work.step.recompute < 2, 3.0, 0.0)[:, None] * stages.predicts
    return travelling * ((stages.count > 0) * work.in_flight + kept)


def _kept_states(work: StepWorkload) -> Array:
    """Bytes of a teacher's last states, [n, s], which stay on the last stage until the model has read all
    micro-batches."""
    kept = np.zeros_like(work.stages.count)
    for other in work.others:
        if other.step.trains.all():
            continue
        model, layout = other.model, other.layout
        positions = work.micro_batches * other.step.micro_sequences * model.label_length / layout.context
        # What the output projection multiplies is another tensor where a norm or a matrix lies before it, or tensor
        # ranks gather it.
        projected = ((model.head_tensors > 2) | (layout.sequence > 0)) * model.embedding_dim
        # Of layers that are compared, all positions' states, and queries and keys of a tensor rank's heads.
        compared = work.comparison.states * model.hidden
        compared = compared + 2 * work.comparison.layers * model.query_dim / layout.tensor
        of_states = positions * other.step.activation_bytes * (model.hidden + projected + compared)
        kept = kept + work.stages.predicts * of_states[:, None]
    return kept


def _compared_bytes(work: StepWorkload) -> Array:
    """Bytes while the loss of a micro-batch compares layers, [n]: hidden states side by side, and their projections;
    and of one layer at a time five tensors in fp32, of hidden states or of scores, beside these pairs of positions, and
    five copies of queries or keys."""
    compared, layout, micro = work.comparison, work.layout, work.step.micro_sequences
    length, width = work.model.label_length, work.step.activation_bytes
    kept, of_states = compared.states * micro * length * work.model.hidden * width, np.zeros_like(micro)
    for other in work.others:
        of_one = compared.projects * micro * length * other.model.hidden
        kept, of_states = kept + compared.states * of_one * width, of_states + 20 * of_one
    pairs = micro * np.square(length)
    scores = 20 * pairs * work.model.heads / layout.tensor + 4 * pairs
    copies = 20 * micro * length * work.model.query_dim / layout.tensor
    return kept + np.maximum(of_states, compared.scores * (scores + copies))


def _saved_by_layers(work: StepWorkload) -> tuple[Array, Array, Array]:
    """Bytes that layers save for all micro-batches in flight, and bytes beside them while one layer is recomputed,
    whose input is among those saved, without gradients and with those of its feed-forward layer; what later stacks
    saved of the micro-batch is free by then. [n, s] each."""
    model, stages, recompute = work.model, work.stages, work.step.recompute
    full, selective = (recompute == 2)[:, None], (recompute == 1)[:, None]
    saved, recomputed, with_gradients, behind = (np.zeros_like(stages.count) for _ in range(4))
    for stack in reversed(work.stacks):
        last = stack is work.stacks[-1]
        inputs = _hidden(work, stack.length)[:, None]
        of_trained, of_frozen = (layer_bytes(work, stack, trained)[:, None] for trained in (True, False))
        trained_layers = stack.trained_layers
        of_layer = np.where(trained_layers > 0, of_trained, of_frozen)
        ends = stages.predicts if last else stages.embeds
        norm = inputs * (model.final_norm * stack.ends_in_norm * _norm_tensors(work))[:, None] * ends
        of_layers = trained_layers * of_trained + (stack.backward_layers - trained_layers) * of_frozen
        beside = np.zeros_like(stack.length)
        for part in stack.parts:
            beside = beside + part.kept_when_recomputed(work, stack)
        of_inputs = stack.backward_layers * (inputs + beside[:, None])
        of_stack = np.where(full, of_inputs, of_layers) / work.layout.virtual[:, None]
        behind, freed = behind + of_stack, behind
        # What a decoder reads; on the first stage, if layers are not recomputed, the stream that both were in, too.
        encoded = _hidden(work, stack.encoder_length)[:, None] * (1 + np.where(full, 0.0, stages.embeds))
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
        again = np.where(full, of_layer - inputs + norm, 0.0)
        of_one = np.where(selective, core, again) - freed
        recomputed = np.maximum(recomputed, np.where(stack.backward_layers > 0, of_one, 0.0))
        in_attention = np.where(selective, core, again - freed_before) + softmax - freed
        in_backward = np.maximum.reduce([of_one, again + gradients - freed, in_attention])
        with_gradients = np.maximum(with_gradients, np.where(stack.backward_layers > 0, in_backward, 0.0))
        saved = saved + _shared_score_masks(work, stack)
    return saved, recomputed, with_gradients


def _feed_forward_gradients(work: StepWorkload, stack: LayerStack) -> Array:
    """Bytes, [n], that the backward pass of a feed-forward layer, the first of a layer, has beside all that the layer
    keeps: the gradients of its output and of what lies between its matrices."""
    positions = work.step.micro_sequences * stack.length / work.layout.context
    between = stack.ffn * np.where(work.model.gated, 2, 1) / work.layout.tensor
    of_one = positions * work.step.activation_bytes * between
    for part in stack.parts:
        of_one = np.maximum(of_one, part.gradient_bytes(work, stack))
    return _hidden(work, stack.length) + of_one


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
    attention = (0.0 if instead else queries + 2 * keys + model.bias_copies) + outputs
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
    # Of grouped queries and keys the copies alone.
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
    # Each key's queries get a copy of it.
    rotated = np.where(model.grouped, 3 * queries, 2 * queries * model.rotary)
    # Exchanged between context ranks for others, which are kept alone; so is what attention made of them.
    exchanged = np.where(layout.context > 1, np.where(model.grouped, 4 * queries, queries), rotated)
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


def _shared_gradients(work: StepWorkload) -> Array:
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
    norms = keeps_fc1 + (work.model.layer_norms / 2 * _norm_tensors(work))[:, None]
    outside = norms * (work.model.hidden / layout.sequence_slices)[:, None]
    tensors = kernels.ffn_tensors[:, None] - ~keeps_fc2 * kernels.fc2_input_tensors[:, None]
    feed_forward = tensors * (stack.active_ffn / layout.tensor)[:, None]
    return (positions * step.activation_bytes)[:, None] * (outside + feed_forward)


def loss_bytes(work: StepWorkload) -> tuple[Array, Array, Array]:
    """Bytes of one micro-batch's loss, [n]: those saved for the backward pass with what makes them, the most that live
    at a time, and those left when logits have been judged. They are what lies between the last layer and logits, and
    the logits with what is made of them; or their gradient and that of their weight. Where logits are made in chunks of
    positions, the gradient of their weight, in fp32, and that of all hidden states are there throughout."""
    model, kernels, width, columns = work.model, work.kernels, work.step.activation_bytes, work.logit_columns
    positions = work.step.micro_sequences * model.label_length / work.layout.context
    sampling = _sampling_bytes(work, np.minimum(positions, kernels.logit_positions) * columns)
    of_chunk = np.maximum(kernels.chunk_logit_bytes * kernels.logit_positions * columns, sampling)
    table = model.trains_output * columns * model.embedding_dim
    sums = 4 * table + positions * model.embedding_dim * width
    handed_over = kernels.chunk_head_gradient_bytes * table
    at_once = np.maximum(
        np.maximum(kernels.logit_bytes * positions * columns, sampling),
        width * positions * columns + kernels.head_gradient_bytes * table,
    )
    head_bytes = model.head_tensors * width + kernels.norm_bytes
    norm = positions * model.hidden * head_bytes / work.layout.sequence_slices
    in_chunks = positions > kernels.logit_positions
    saved = kernels.saved_logit_bytes * positions * columns
    left = norm + np.where(in_chunks, sums, saved)
    others = model.further * left  # of further predictions, whose logits are made one after the other
    return (
        others + norm + np.where(in_chunks, of_chunk + sums, saved),
        others + norm + np.where(in_chunks, np.maximum(of_chunk, handed_over) + sums, at_once),
        others + left,
    )


def _sampling_bytes(work: StepWorkload, entries: Array) -> Array:
    """Bytes, [n], while a generator's logits are sampled from, of so many vocabulary entries: these in fp32, those of
    sampled positions again, and three numbers of 8 bytes for as many as there is noise for at a time."""
    share, width = work.kernels.sampled_share, work.step.activation_bytes
    logits = np.where(width < 4, width + 4, 4) + 4 * share
    return np.where(share > 0, logits * entries + 24 * np.minimum(share * entries, NOISE_ENTRIES), 0.0)


def _norm_tensors(work: StepWorkload) -> Array:
    """Tensors as large as its input that a norm keeps, [n]."""
    return 1 + work.kernels.norm_bytes / work.step.activation_bytes


def _hidden(work: StepWorkload, length: Array) -> Array:
    """Bytes of a micro-batch's hidden states on a rank, [n]."""
    layout, step = work.layout, work.step
    positions = step.micro_sequences * length / layout.context
    return positions * work.model.hidden * step.activation_bytes / layout.sequence_slices
