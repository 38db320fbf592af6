"""The parameters of embeddings."""

from collections.abc import Iterator
from dataclasses import replace

from pretrain.config.model import Model
from pretrain.model_spec.init_schemes import SCHEMES, NormalScheme
from pretrain.model_spec.linears import matrix, norm, replicated_linear, table, under, vocabulary
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.model_spec.slots import Specs

WORD_EMBEDDINGS = "embedding.word_embeddings.weight"
STACK_NAMES = ("encoder", "decoder")


def embeddings(model: Model, words: Specs | None = None) -> Iterator[ParameterSpec]:
    """Token embeddings, and for each stack its position and segment embeddings, norm and projection.
    `words`: what takes the place of token embeddings."""
    scheme = SCHEMES[model.init.name](model)
    yield from _words(model, scheme) if words is None else words
    if model.capabilities.query_stream:
        yield matrix("query", (1, model.embedding_dim), (None, None), Normal((scheme.table(),)))
    lengths = model.position_rows, model.label_length
    for stack, layers, length in zip(STACK_NAMES, model.stacks, lengths, strict=True):
        name = "" if model.capabilities.first_names else f"{stack}."
        if layers and model.positions.name == "learned":
            yield table(f"{name}position_embeddings.weight", length + model.position_offset, model)
        if layers and model.segments and not model.compares_segments:
            yield table(f"{name}segment_embeddings.weight", model.segments, model)
        if layers and model.embedding_norm:
            yield from under(f"{name}norm.", norm(model, model.embedding_dim))
        if layers and model.embedding_size and model.recurrence is None:
            fixed = replicated_linear(model, model.embedding_size, model.hidden, fan_in=None)
            yield from under(f"{name}projection.", fixed)
        if layers and model.positions.name == "relative":
            shape = model.relative_num_buckets, model.heads
            yield matrix(f"relative.{stack}", shape, (None, "tensor"), Normal((scheme.table(),)))


def _words(model: Model, scheme: NormalScheme) -> Specs:
    words = vocabulary(model, "word_embeddings.weight", scheme.word_embeddings())
    # Rows of clusters are the output's.
    yield words if model.ties_output else replace(words, padding=words.padding + len(model.cutoffs))
