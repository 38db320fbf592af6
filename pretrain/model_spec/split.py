"""The split of a model's layers into pipeline chunks."""

from bisect import bisect_left
from itertools import accumulate

from pretrain.config.model import Model
from pretrain.model_spec.slots import feed_forward_matrices


def chunk_layers(model: Model, pipeline: int, virtual: int = 1) -> list[int]:
    """Number of layers of each chunk, in the order of the model: equal ones where layers divide into them, unless
    modules that predict further tokens are beside the last layers."""
    chunks, layers = pipeline * virtual, sum(model.stacks)
    if model.is_encoder_decoder:
        return split_layers(model, chunks)
    if layers % chunks == 0 and model.mtp is None:
        return [layers // chunks] * chunks
    return balanced_layers(layers, pipeline, virtual, beside_last_layer(model))


def balanced_layers(layers: int, pipeline: int, virtual: int, beside: float) -> list[int]:
    """Number of layers of each chunk, at least one each: the stage with the most work has as little as can be, where
    the last one has the work of so many layers `beside` its own. Of other stages, the first ones may have one layer
    less, as they hold the most micro-batches. Of a stage's chunks, the first ones may, which are in flight the longest;
    of the last stage's the last ones, beside the head."""
    if pipeline == 1:
        return [layers]
    others = pipeline - 1
    fits = range(virtual, layers - virtual * others + 1)
    last = min(fits, key=lambda count: (max(count + beside, -(-(layers - count) // others)), -count))
    each, more = divmod(layers - last, others)
    of_stages = [each + (stage >= others - more) for stage in range(others)] + [last]
    chunks = [
        [count // virtual + (chunk >= virtual - count % virtual) for chunk in range(virtual)] for count in of_stages
    ]
    chunks[-1].reverse()
    return [of_stage[chunk] for chunk in range(virtual) for of_stage in chunks]


def beside_last_layer(model: Model) -> float:
    """Work of the head and of modules that predict further tokens, each with a projection, a layer and the head, in
    multiples of a layer's. (Multiply-adds of the forward pass for each position; the head counts at those with a
    label.)"""
    layers = range(sum(model.stacks))
    layer = sum(_decoder_layer_work(model, number) for number in layers) / len(layers)
    head = model.hidden * model.head_outputs * model.label_length / model.sequence_length
    further = 0 if model.mtp is None else model.mtp.num_layers
    module = _decoder_layer_work(model, layers[-1]) + 2 * model.hidden**2 + head
    return (head + further * module) / layer


def _decoder_layer_work(model: Model, number: int) -> float:
    """Multiply-adds of a layer for each position. Of experts, those count that a token passes through."""
    found = sum(inputs * outputs for inputs, outputs in model.query_key_value_matrices)
    found += model.heads * model.value_dim * model.hidden
    found += sum(inputs * outputs for inputs, outputs in feed_forward_matrices(model, number))
    if model.experts is not None and model.has_experts(number):
        found += model.hidden * model.experts.count
    keys = model.attention.layer_pattern(number).mean_keys(model.sequence_length, model.is_causal)
    return found + model.heads * (model.dim_per_head + model.value_dim) * keys


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
    if model.front_encoder is not None:  # on the first stage
        work[0] += model.front_encoder.layers * encoder
    work[-1] += targets * model.hidden * model.head_outputs
    return work
