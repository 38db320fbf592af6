"""Model FLOPs. No torch."""

from pretrain.config.model import Model
from pretrain.config.patterns.base import PatternSettings


def num_distances(model: Model, length: int) -> int:
    """Distances in a row of `length` positions, and from its memory, that attention scores have a term for; 0 without
    such a term."""
    if not model.adds_distance_scores:
        return 0
    return 2 * length - 1 if model.has_encoder else length + model.memory_length


def mean_keys(model: Model, pattern: PatternSettings, length: int, causal: bool) -> float:
    """Keys that a query of a row of `length` positions attends to by `pattern`, those of memory included, averaged over
    the row."""
    memory = model.memory_length
    if not memory:
        return pattern.mean_keys(length, causal)
    reach = length + memory  # the row's positions are the last of so many
    return (reach * pattern.mean_keys(reach, causal) - memory * pattern.mean_keys(memory, causal)) / length


def training_flops_per_token(model: Model) -> float:
    """Floating-point operations of the forward and backward pass per token of a full sequence (for an encoder-decoder,
    per token of its input).

        3 * (2 * (layers * layer weights + vocabulary * hidden) + sum over layers of 4 * keys * heads * head width)

    A multiply-add is two operations; backward is twice forward (Kaplan et al. 2020, arXiv 2001.08361, section 2.1;
    the attention term as in Chowdhery et al. 2022, arXiv 2204.02311, appendix B). Unlike both, `keys` counts only the
    keys that a query attends to: half the sequence under a causal mask, fewer in a band. These are model FLOPs,
    independent of the kernels: recomputed activations, padding, norms and softmax are not counted. Layers of an
    encoder-decoder, and its output layer, count once per position that they process. Vectors of distances (Shaw's,
    DeBERTa's) count as additional keys; Transformer-XL's, which add nothing to values, as half of one each. Shared
    layers count each time they are computed, and a source encoder's as the encoder's. Factorized embeddings count with
    their own width in place of `hidden`, and so do their projections. The mask decoder counts as its uses of the last
    layer, whose keys and values are those of one use, a convolution as three products of hidden * hidden. Keys and
    values of memory, made again in each step, count too.
    """
    inputs, labels = model.sequence_length, model.label_length
    projection = model.hidden * model.heads * model.dim_per_head
    shared = model.hidden * model.num_kv_heads * model.dim_per_head  # keys, or values
    weights = 2 * (projection + shared) + (3 if model.gated else 2) * model.hidden * model.ffn_dim
    scores = 2 * model.heads * model.dim_per_head  # multiply-adds for each key that a query attends to
    encoder_layers, decoder_layers = model.stacks
    source_layers = 0 if model.source_encoder is None else model.source_encoder.layers
    multiply_adds = 0.0
    for layers, length, causal in (
        (source_layers, inputs, False),
        (encoder_layers, inputs, False),
        (decoder_layers, labels, True),
    ):
        for layer in range(layers):
            keys = mean_keys(model, model.attention.of_layer(layer), length, causal)
            distances = model.distance_rows + num_distances(model, length) / 2
            multiply_adds += length * (weights + scores * (keys + distances))
            multiply_adds += model.memory_length * 2 * shared * 2 / 3  # memory has no gradient
    if model.is_encoder_decoder:
        multiply_adds += decoder_layers * (2 * (inputs * shared + labels * projection) + labels * scores * inputs)
    if model.has_mask_decoder:
        keys = model.attention.of_layer(encoder_layers - 1).mean_keys(inputs, False)
        of_one = weights - 2 * shared + scores * (keys + model.distance_rows)
        multiply_adds += (model.mask_decoder_layers - 1) * inputs * of_one
    if model.convolution is not None:
        multiply_adds += inputs * 3 * model.hidden * model.hidden
    head = 0
    if model.task_head is not None:
        head += model.hidden * (model.task_head.outputs + (model.hidden if model.has_pooler else 0))
    if model.has_vocabulary_logits:
        head += model.output_rows * model.embedding_dim
        if model.capabilities.masked_head:
            head += model.hidden * model.embedding_dim
    if model.embedding_size is not None:
        multiply_adds += inputs * model.embedding_size * model.hidden
    return 6 * (multiply_adds + labels * head) / inputs
