"""Bytes that a rank holds at most, each part apart, of any number of layouts at once.

Weights, gradients and optimizer states are `plan/memory.py`'s. Activations are counted tensor by tensor, as autograd
saves them; `tests/multirank/test_activation_memory.py` holds the counts to what ranks measure."""

from dataclasses import dataclass

import numpy as np

from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.work import KERNELS, Array, Stack, Work


@dataclass(frozen=True)
class HeldBytes:
    """Bytes that a rank on a stage of each kind holds, [n, s]."""

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    """bytes saved for the backward passes of all micro-batches in flight"""
    working: Array
    """bytes of the layer that is recomputed, or of logits and loss, which never exist at the same time"""
    buffers: Array
    """bytes of weights while they are gathered, of messages in flight, and of what libraries and the allocator keep"""

    @property
    def total(self) -> Array:
        return sum((getattr(self, name) for name in self.__dataclass_fields__), np.zeros_like(self.weights))

    @property
    def fullest(self) -> Array:
        """Bytes of the stage that holds the most, [n]."""
        most: Array = self.total.max(axis=1)
        return most


def held_bytes(work: Work, c: Constants, overhead: bool = True) -> HeldBytes:
    """Bytes that each layout holds. `overhead`: include the device's own, which host memory does not have."""
    copies = (work.context * work.data)[:, None]
    shared = np.where((work.zero == 3)[:, None], work.parameters / copies, work.parameters)
    weights = work.weight_bytes[:, None] * work.parameters
    gradients = work.gradient_state_bytes[:, None] * work.parameters
    optimizer = work.optimizer_bytes[:, None] * work.parameters
    kept, again = _of_layers(work)
    last = work.predicts * loss_bytes(work)[:, None]
    working = np.maximum(again, last)
    dropped = work.dropout / work.width
    embedded = _hidden(work, work.stacks[0].length) * (dropped + work.embedding_norms * _norm_copies(work))
    first = embedded[:, None] * work.embeds * work.in_flight
    layers = np.maximum(sum((stack.layers for stack in work.stacks), np.zeros_like(work.stages)), 1)
    # Stage 3 gathers the weights of a layer, and of the next one.
    gathered = np.where((work.zero == 3)[:, None], 2 * work.width[:, None] * (work.parameters - shared) / layers, 0.0)
    moving = 2 * _hidden(work, work.length)[:, None] * (work.pipeline > 1)[:, None]
    buffers = gathered + moving
    if overhead:
        buffers = buffers + c.overhead_gib * 2**30 + c.fragments * (kept + working)
    return HeldBytes(weights, gradients, optimizer, kept + first, working, buffers)


def _of_layers(work: Work) -> tuple[Array, Array]:
    """[n, s] what layers keep of all micro-batches in flight, and what is there besides while one is computed again:
    then its input is among those kept, and what later stacks kept of the micro-batch has gone."""
    whole_layers, selective = (work.recompute == 2)[:, None], (work.recompute == 1)[:, None]
    kept, again, behind = (np.zeros_like(work.stages) for _ in range(3))
    for stack in reversed(work.stacks):
        last = stack is work.stacks[-1]
        inputs, whole = (part[:, None] for part in (_hidden(work, stack.length), layer_bytes(work, stack)))
        norm = inputs * (work.final_norms * _norm_copies(work))[:, None] * (work.predicts if last else work.embeds)
        of_one = stack.layers / work.virtual[:, None] * np.where(whole_layers, inputs, whole)
        behind, earlier = behind + of_one, behind
        # What a decoder reads; on the first stage, if layers are not recomputed, the stream that both were in, too.
        read = _hidden(work, stack.memory_length)[:, None] * (1 + np.where(whole_layers, 0.0, work.embeds))
        of_one = of_one + np.where(stack.layers > 0, read, 0.0)
        if not last:  # the last norm lies with the head
            of_one = of_one + np.where(whole_layers, 0.0, norm)
        kept = kept + of_one * work.in_flight
        core = core_bytes(work, stack, work.most_scores) - _behind_core(work, stack)
        one = np.select([whole_layers, selective], [whole - inputs + norm, core[:, None]], 0.0) - earlier
        again = np.maximum(again, np.where(stack.layers > 0, one, 0.0))
    return kept, again


def layer_bytes(work: Work, stack: Stack) -> Array:
    """Bytes that one layer keeps of a micro-batch, [n], where at most selective recomputation applies: the mean over
    layers or, if whole layers are recomputed, the layer with the most scores."""
    positions = work.micro * stack.length / work.context
    inner, keys = work.heads * work.head_dim, work.kv_heads * work.head_dim
    # Inputs of norms, and outputs that something is made of; under sequence parallelism gathered again for the backward
    # pass.
    crossing = np.where(stack.memory_length > 0, 1.0, 0.0)
    norm_copies = work.norm_bytes / work.width
    outside = (2 + work.norms + 2 * crossing + (work.norms + crossing) * norm_copies) * work.hidden / work.slices
    attention = inner + 2 * keys + inner
    between = (work.kv_heads > 1) & (work.kv_heads < work.heads)  # a group's queries have keys behind them: copied
    copied = between * inner * np.maximum(work.head_norms, work.recompute == 1)
    attention = attention + copied + work.head_norms * (inner + 2 * keys + (inner + keys) * norm_copies)
    attention = attention + crossing * (2 * inner + 2 * keys * stack.memory_length / stack.length)
    feed_forward = work.inner_widths * work.ffn
    saved = positions * work.width * (outside + (attention + feed_forward) / work.tensor)
    masks = positions * work.dropout * (2 + crossing) * work.hidden / work.slices
    masks = masks + positions * work.ffn_dropout * work.ffn / work.tensor
    share = np.where(work.recompute == 2, work.most_scores, work.score_share)
    # Of grouped queries and keys the copies alone.
    instead = np.where(work.kv_heads < work.heads, positions * work.width * (inner + 2 * keys) / work.tensor, 0.0)
    read = np.where(work.read_score_bytes > 0, stack.memory_length * work.read_score_bytes, 4.0)
    of_reading = crossing * positions * work.heads / work.tensor * read
    core = np.where(work.recompute == 1, 0.0, core_bytes(work, stack, share) - instead + of_reading)
    every = saved + core + masks + 16 * positions / work.slices
    # The layer's input; of its products those of queries and values, a gate or the first of two, and the last.
    products = 2 * work.hidden / work.slices + (2 * inner + keys + work.ffn) / work.tensor
    chosen = work.products_kept * (work.recompute == 1) > 0
    found: Array = np.where(chosen, positions * work.width * products, every)
    return found


def core_bytes(work: Work, stack: Stack, share: Array) -> Array:
    """Bytes that one layer keeps of a micro-batch, [n], between its queries, keys and values and the output of
    attention. `share` [n]: share of the keys whose scores are written out."""
    positions = work.micro * stack.length / work.context
    inner, grouped = work.heads * work.head_dim, work.kv_heads < work.heads
    turned = np.where(grouped, 3 * inner, 2 * inner * work.rotary)  # each key's queries get a copy of it
    # Exchanged between context ranks for others, which are kept alone; so is what attention made of them.
    copies = np.where(work.context > 1, np.where(grouped, 4 * inner, inner), turned) + work.windows * 2 * inner
    angles = work.rotary * positions * 2 * work.head_dim * work.angle_bytes
    # Sums of rows for the softmax's backward pass; of plain attention, and where scores are written out, probabilities.
    heads = positions * work.heads / work.tensor
    score_bytes = np.where(work.kernel == 0, 4 + work.width + 1 + work.width, work.width * 2 + 1)
    per_score = np.where(work.kernel < KERNELS.index("flash1"), heads * stack.length * score_bytes, heads * 4)
    scaled = np.where(grouped | (work.rotary > 0), 0.0, work.head_dim)  # queries, where they are no copy already
    written = heads * (stack.length * share * work.score_bytes + (scaled + 2 * work.shaw_rows) * work.width)
    per_score = np.where(work.score_bytes > 0, written, per_score)
    per_score = per_score + work.score_biases * heads * stack.length * work.width
    per_score = per_score + positions / work.micro * stack.length * share * work.pair_bytes
    found: Array = positions * work.width * copies / work.tensor + angles + per_score
    return found


def _behind_core(work: Work, stack: Stack) -> Array:
    """[n] what a layer keeps that has gone when its attention is computed again: of its feed-forward part, and with
    that one's norm half of what lies outside."""
    positions = work.micro * stack.length / work.context
    outside = (1 + work.norms / 2 * _norm_copies(work)) * work.hidden / work.slices
    found: Array = positions * work.width * (outside + work.inner_widths * work.ffn / work.tensor)
    return found


def loss_bytes(work: Work) -> Array:
    """[n] of one micro-batch: what lies between the last layer and logits, and the probabilities of all words in fp32,
    which take the place of fp32 logits; half-precision logits and their gradients are beside them. Of some positions at
    a time, if not all: then the gradient of what makes them is there too, in fp32, and that of all their hidden
    states."""
    positions, words = work.micro * work.labels / work.context, work.vocabulary / work.logit_ranks
    logits = work.logit_bytes * np.minimum(positions, work.logit_positions) * words
    sums = 4 * words * work.embedding_dim + positions * work.embedding_dim * work.width
    norm = positions * work.hidden * (work.head_tensors * work.width + work.norm_bytes) / work.slices
    return norm + logits + np.where(positions > work.logit_positions, sums, 0.0)


def _norm_copies(work: Work) -> Array:
    """Copies of its input that a norm keeps, [n]."""
    return 1 + work.norm_bytes / work.width


def _hidden(work: Work, length: Array) -> Array:
    """Bytes of a micro-batch's hidden states on a rank, [n]."""
    return work.micro * length / work.context * work.hidden * work.width / work.slices
