"""Bytes that the head and the loss of a rank save and take, and what a comparison with a teacher does."""

import numpy as np

from pretrain.model_spec.logits import NOISE_ENTRIES
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.workload import StepWorkload


def kept_states(work: StepWorkload) -> Array:
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


def compared_bytes(work: StepWorkload) -> Array:
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


def loss_bytes(work: StepWorkload) -> tuple[Array, Array, Array]:
    """Bytes of one micro-batch's loss, [n]: those saved for the backward pass with what makes them, the most that live
    at a time, and those left when logits have been judged. They are what lies between the last layer and logits, and
    the logits with what is made of them; or their gradient and that of their weight. Where logits are made in chunks of
    positions, the gradient of their weight, in fp32, and that of all hidden states are there throughout."""
    model, kernels, width, columns = work.model, work.kernels, work.step.activation_bytes, work.logit_columns
    positions = work.step.micro_sequences * model.label_length / work.layout.context
    sampling = _sampling_bytes(work, np.minimum(positions, kernels.logit_positions) * columns)
    table = model.trains_output * columns * model.embedding_dim
    entries = kernels.logit_positions * columns
    of_chunk = np.maximum(kernels.chunk_logit_bytes * entries + kernels.chunk_product_bytes * table, sampling)
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
