"""Which layers go to which pipeline chunk."""

from functools import cache

from pretrain.config.model import Model


def chunk_layers(model: Model, chunks: int) -> list[int]:
    """Layers of each chunk, in the order of the model."""
    if model.is_encoder_decoder:
        return split_layers(model, chunks)
    return [sum(model.stacks) // chunks] * chunks


def split_layers(model: Model, chunks: int) -> list[int]:
    """Layers of each chunk of an encoder-decoder, encoder's first, at least one each: so that the largest chunk has the
    least work. Of equal splits, the one with fewer layers early."""
    work = layer_work(model)
    assert 1 <= chunks <= len(work), "the layout was checked"

    @cache
    def best(begin: int, left: int) -> tuple[int, tuple[int, ...]]:
        """(largest work of a chunk, layers of each) when the layers from `begin` on are shared by `left` chunks."""
        if left == 1:
            return sum(work[begin:]), (len(work) - begin,)
        found = []
        for count in range(1, len(work) - begin - left + 2):
            rest, counts = best(begin + count, left - 1)
            found.append((max(sum(work[begin : begin + count]), rest), (count, *counts)))
        return min(found)

    return list(best(0, chunks)[1])


def layer_work(model: Model) -> list[int]:
    """Multiply-adds of a forward pass of one sequence, of each layer; the head's are in the last one's."""
    encoder_layers, decoder_layers = model.stacks
    inputs, targets = model.sequence_length, model.label_length
    width = model.heads * model.head_width
    projection = model.hidden * width
    shared = model.hidden * model.query_groups * model.head_width  # of keys, or of values
    feed_forward = (3 if model.gated else 2) * model.hidden * model.ffn_width
    encoder = inputs * (2 * (projection + shared) + feed_forward) + 2 * inputs * inputs * width
    decoder = targets * (2 * (projection + shared) + feed_forward) + targets * targets * width
    cross = 2 * (inputs * shared + targets * projection) + 2 * inputs * targets * width
    work = [encoder] * encoder_layers + [decoder + cross] * decoder_layers
    work[-1] += targets * model.hidden * model.padded_vocabulary
    return work
