"""The parameters of heads."""

from collections.abc import Iterator
from dataclasses import replace

from pretrain.config.model import Model
from pretrain.config.task_head import TaskHeadShape
from pretrain.model_spec.embeddings import WORD_EMBEDDINGS
from pretrain.model_spec.init_schemes import SCHEMES
from pretrain.model_spec.linears import (
    norm,
    output_linear,
    padding_rows,
    replicated_linear,
    under,
    vector,
    vocabulary,
)
from pretrain.model_spec.parameter_spec import FanSize, ParameterSpec

TEACHER_PROJECTION = "teacher_projection."
"""prefix of the projection of hidden states to a teacher's, which only training reads"""


def head(model: Model) -> Iterator[ParameterSpec]:
    """The output layer, which a tied embedding provides or which has its own weight, and before it the layers that an
    encoder needs to predict tokens; or a task head; or both."""
    if model.teacher_hidden is not None:
        yield from under(TEACHER_PROJECTION, output_linear(model, model.hidden, model.teacher_hidden))
    if model.task_head is not None:
        yield from under("head.", task_head(model, model.task_head))
    if not model.has_vocabulary_logits:
        return
    if model.capabilities.masked_head:
        fan_out: FanSize = None if model.embedding_size else "width"
        transform = replicated_linear(model, model.hidden, model.embedding_dim, fan_out=fan_out)
        yield from under("head.transform.", transform)
        yield from under("head.norm.", norm(model, model.embedding_dim))
        if model.binary_head:
            yield from under("head.pooler.", replicated_linear(model, model.hidden, model.hidden))
            yield from under("head.next_sentence.", output_linear(model, model.hidden, 2))
    if model.capabilities.head_bias:
        bias = vector("output_layer.bias", model.padded_vocab_size, axis="tensor")
        yield replace(bias, padding=padding_rows(model))
    output = vocabulary(model, "output_layer.weight", SCHEMES[model.init.name](model).table())
    yield replace(output, alias_of=WORD_EMBEDDINGS) if model.tie_word_embeddings else output


def task_head(model: Model, settings: TaskHeadShape) -> Iterator[ParameterSpec]:
    """The classifier of a task, and the dense layer before it where one position answers for its row."""
    if settings.kind == "detector":
        if model.capabilities.detector_context:
            yield from under("norm.", norm(model))
        yield from under("dense.", replicated_linear(model, model.hidden, model.hidden))
        yield from under("detector.", output_linear(model, model.hidden, settings.outputs))
        return
    if settings.kind == "span":
        yield from under("start.", output_linear(model, model.hidden, 1))
        yield from under("dense.", replicated_linear(model, model.hidden, model.hidden))
        yield from under("of_start.", replicated_linear(model, model.hidden, model.hidden, bias=False))
        yield from under("norm.", norm(model))
        yield from under("end.", output_linear(model, model.hidden, 1))
        return
    if model.has_pooler:
        yield from under("pooler.", replicated_linear(model, model.hidden, model.hidden))
    yield from under("classifier.", output_linear(model, model.hidden, settings.outputs, bias=model.classifier_bias))
