"""The split of a model's layers into pipeline chunks."""

from bisect import bisect_left
from itertools import accumulate

from pretrain.config.model import Model


def chunk_layers(model: Model, chunks: int) -> list[int]:
    """Number of layers of each chunk, in the order of the model."""
    if model.is_encoder_decoder:
        return split_layers(model, chunks)
    return [sum(model.stacks) // chunks] * chunks


def split_layers(model: Model, chunks: int) -> list[int]:
    """Number of layers of each chunk of an encoder-decoder, encoder layers first, at least one each: the split that
    minimizes the work of the largest chunk. Ties go to the split with fewer layers in the first chunks."""
    work = layer_work(model)
    assert 1 <= chunks <= len(work), "the layout was checked"
    total, sums = len(work), [0, *accumulate(work)]
    largest = [sums[-1] - before for before in sums]  # if all layers from `before` on are one chunk
    counts = [[total - begin for begin in range(total)]]  # layers of the first chunk, with 1, 2, ... chunks left
    for left in range(2, chunks + 1):
        rest, largest, first = largest, largest.copy(), [0] * total
        for begin in range(chunks - left, total - left + 1):
            # With each added layer the first chunk has more work, and the largest of the others no more than before.
            sizes = range(begin + 1, total - left + 2)
            at = bisect_left(sizes, True, key=lambda end: sums[end] - sums[begin] >= rest[end])
            largest[begin] = min([sums[end] - sums[begin] for end in sizes[at : at + 1]], default=rest[sizes[-1]])
            if at and rest[sizes[at - 1]] <= largest[begin]:
                largest[begin] = rest[sizes[at - 1]]
                at = bisect_left(sizes, True, key=lambda end: rest[end] <= largest[begin])
            first[begin] = sizes[at] - begin
        counts.append(first)
    found: list[int] = []
    for first in reversed(counts):
        found.append(first[sum(found)])
    return found


def layer_work(model: Model) -> list[int]:
    """Multiply-adds of each layer in the forward pass of one sequence; those of the head count with the last layer,
    those of a source encoder with the first."""
    encoder_layers, decoder_layers = model.stacks
    inputs, targets = model.sequence_length, model.label_length
    width = model.heads * model.dim_per_head
    projection = model.hidden * width
    shared = model.hidden * model.num_kv_heads * model.dim_per_head  # keys, or values
    feed_forward = (3 if model.gated else 2) * model.hidden * model.ffn_dim
    encoder = inputs * (2 * (projection + shared) + feed_forward) + 2 * inputs * inputs * width
    decoder = targets * (2 * (projection + shared) + feed_forward) + targets * targets * width
    cross = 2 * (inputs * shared + targets * projection) + 2 * inputs * targets * width
    work = [encoder] * encoder_layers + [decoder + cross] * decoder_layers
    if model.source_encoder is not None:  # on the first stage
        work[0] += model.source_encoder.layers * encoder
    work[-1] += targets * model.hidden * model.head_outputs
    return work
