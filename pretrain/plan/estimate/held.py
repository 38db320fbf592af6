"""Bytes that a rank holds at most, each part apart, of any number of layouts at once.

Weights, gradients and optimizer states are `plan/memory.py`'s. Activations are counted tensor by tensor, as autograd
saves them; `tests/multirank/test_activation_memory.py` holds the counts to what ranks measure."""

from dataclasses import dataclass

import numpy as np

from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.work import KERNELS, Array, Stack, Work


@dataclass(frozen=True)
class HeldBytes:
    """[n, s], of a rank on a stage of each kind."""

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    """of all micro-batches in flight, saved for their backward passes"""
    working: Array
    """of the layer that is recomputed, or of logits and loss; never at the same time"""
    buffers: Array
    """weights gathered for a moment, messages on their way, what libraries and the allocator keep"""

    @property
    def total(self) -> Array:
        return sum((getattr(self, name) for name in self.__dataclass_fields__), np.zeros_like(self.weights))

    @property
    def fullest(self) -> Array:
        """[n] of the stage that holds most."""
        most: Array = self.total.max(axis=1)
        return most


def held_bytes(work: Work, c: Constants, overhead: bool = True) -> HeldBytes:
    """`overhead`: with the device's own, which host memory has not."""
    copies = (work.context * work.data)[:, None]
    shared = np.where((work.zero == 3)[:, None], work.parameters / copies, work.parameters)
    weights = work.weight_bytes[:, None] * work.parameters
    gradients = work.gradient_state_bytes[:, None] * work.parameters
    optimizer = work.optimizer_bytes[:, None] * work.parameters
    kept, again = np.zeros_like(work.stages), np.zeros_like(work.stages)
    for stack in work.stacks:
        whole = layer_bytes(work, stack)
        whole_layers = work.recompute == 2
        inputs = _hidden(work, stack.length)
        # A stage's layers are shared out equally among its chunks.
        in_flight = stack.layers / work.virtual[:, None] * work.in_flight
        kept = kept + in_flight * np.where(whole_layers, inputs, whole)[:, None]
        again = np.maximum(again, np.where(whole_layers[:, None] & (stack.layers > 0), whole[:, None], 0.0))
    last = work.predicts * loss_bytes(work)[:, None]
    working = np.maximum(again, last)
    dropped = _hidden(work, work.stacks[0].length) * work.dropout / work.width  # a byte for each element
    normed = _hidden(work, work.stacks[0].length) * work.first_norms * (1 + work.norm_bytes / work.width)
    first = work.embeds * (dropped + normed)[:, None] * work.in_flight
    layers = np.maximum(sum((stack.layers for stack in work.stacks), np.zeros_like(work.stages)), 1)
    # Stage 3 gathers the weights of a layer, and of the next one.
    gathered = np.where((work.zero == 3)[:, None], 2 * work.width[:, None] * (work.parameters - shared) / layers, 0.0)
    moving = 2 * _hidden(work, work.length)[:, None] * (work.pipeline > 1)[:, None]
    buffers = gathered + moving
    if overhead:
        buffers = buffers + c.overhead_gib * 2**30 + c.fragments * (kept + working)
    return HeldBytes(weights, gradients, optimizer, kept + first, working, buffers)


def layer_bytes(work: Work, stack: Stack) -> Array:
    """[n] of one layer and micro-batch, nothing recomputed but what selective recomputation does again."""
    positions = work.micro * stack.length / work.context
    inner, keys = work.heads * work.head_dim, work.kv_heads * work.head_dim
    # Inputs of norms, and outputs that something is made of; under sequence parallelism gathered anew for the backward
    # pass.
    crossing = np.where(stack.memory_length > 0, 1.0, 0.0)
    norm_copies = work.norm_bytes / work.width
    outside = (2 + work.norms + 2 * crossing + (work.norms + crossing) * norm_copies) * work.hidden / work.slices
    grouped = work.kv_heads < work.heads
    queries_keys_values = np.where(grouped, 3 * inner, inner + 2 * keys)  # each key's queries get a copy of it
    rotated = np.where(grouped, 0.0, 2 * inner) * work.rotary  # besides the ones that were turned
    through = work.context > 1  # exchanged for others, which are kept alone; so is what attention made of them
    attention = queries_keys_values + np.where(through, inner, rotated) + inner
    attention = attention + work.head_norms * (inner + 2 * keys + (inner + keys) * norm_copies)
    attention = attention + np.where(work.recompute == 0, work.windows * 2 * inner, 0.0)
    attention = attention + crossing * (2 * inner + 2 * keys * stack.memory_length / stack.length)
    feed_forward = work.inner_widths * work.ffn
    saved = positions * work.width * (outside + (attention + feed_forward) / work.tensor)
    angles = work.rotary * positions * 2 * work.head_dim * 4
    masks = positions * work.dropout * 2 * work.hidden / work.slices  # a byte for each element
    # Sums of rows for the softmax's backward pass; of plain attention, and with dropout, all probabilities.
    heads = positions * work.heads / work.tensor
    rows = heads * 4
    written = work.kernel < KERNELS.index("flash1")
    score_bytes = np.where(work.kernel == 0, 4 + work.width + 1 + work.width, work.width * 2 + 1)
    scores = heads * stack.length * score_bytes
    dropped = heads * stack.length * (np.where(work.width == 2, 4.0, 4.0) + 1 + work.width)
    per_score = np.where(
        written, scores, np.where(work.attention_dropout > 0, dropped + heads * work.head_dim * work.width, rows)
    )
    per_score = per_score + work.score_biases * heads * stack.length * work.width
    scored = np.where(work.recompute == 1, 0.0, per_score)
    found: Array = saved + angles + masks + scored + 16 * positions / work.slices
    return found


def loss_bytes(work: Work) -> Array:
    """[n] of one micro-batch: what lies between the last layer and logits, and the probabilities of all words in fp32,
    which take the place of fp32 logits; half-precision logits and their gradients are beside them. Of some positions at
    a time, if not all: then the gradient of what makes them is there too, in fp32, and that of all their hidden
    states."""
    positions, words = work.micro * work.labels / work.context, work.vocabulary / work.logit_ranks
    logits = work.logit_bytes * np.minimum(positions, work.logit_positions) * words
    sums = 4 * words * work.word_width + positions * work.word_width * work.width
    norm = positions * work.hidden * (work.head_tensors * work.width + work.norm_bytes) / work.slices
    return norm + logits + np.where(positions > work.logit_positions, sums, 0.0)


def _hidden(work: Work, length: Array) -> Array:
    """[n] bytes of a micro-batch's hidden states on a rank."""
    return work.micro * length / work.context * work.hidden * work.width / work.slices
