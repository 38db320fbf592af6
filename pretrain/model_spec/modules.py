"""The parameters of every model, declared part by part. Modules of the same names are built in `models/`; where the two
disagree, building stops (`models/placement.py`)."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pretrain.config.model import Model
from pretrain.config.positions import ShawPositions
from pretrain.model_spec.init_schemes import SCHEMES, Plain
from pretrain.model_spec.parameter_spec import Constant, Declared, Normal

WORDS = "embedding.word_embeddings.weight"
STACKS = ("encoder", "decoder")


def declared(model: Model, prefix: str = "") -> list[Declared]:
    """All parameters of `model`. `prefix` goes before their names, where a run has several models."""
    found = list(_at(0, "embedding.", embeddings(model)))
    depth = 0
    for stack, layers in enumerate(model.stacks):
        for number in range(layers):
            depth += 1
            name = f"{STACKS[stack]}.layers.{number}."
            parts = _at(depth, name, layer(model, crosses=bool(stack) and model.is_encoder_decoder))
            found += _again(parts, name, f"{STACKS[stack]}.layers.0.") if model.shared_layers and number else parts
            if number == layers - 1 and model.norm_first:
                final = "decoder.final_layernorm." if model.capabilities.first_names else f"{name}final.norm."
                found += _at(depth, final, norm(model))
    found += _at(depth + 1, "", head(model))
    return [replace(d, name=prefix + d.name, alias_of=d.alias_of and prefix + d.alias_of) for d in found]


def embeddings(model: Model) -> Iterator[Declared]:
    """Of tokens, and of each stack what it adds to them."""
    scheme = SCHEMES[model.init.name](model)
    yield _vocabulary(model, "word_embeddings.weight", scheme.words())
    for stack, layers, length in zip(STACKS, model.stacks, (model.sequence_length, model.label_length), strict=True):
        name = "" if model.capabilities.first_names else f"{stack}."
        if layers and model.positions.name == "learned":
            yield _table(f"{name}position_embeddings.weight", length + model.position_offset, model)
        if layers and model.segments:
            yield _table(f"{name}segment_embeddings.weight", model.segments, model)
        if layers and model.embedding_norm:
            yield from _under(f"{name}norm.", norm(model, model.embedding_dim))
        if layers and model.embedding_size:
            yield from _under(f"{name}projection.", _whole(model, model.embedding_size, model.hidden))
        if layers and model.positions.name == "relative":
            init = Normal((scheme.table(),))
            yield Declared(f"relative.{stack}", (model.relative_num_buckets, model.heads), (None, "tensor"), init, True)


def layer(model: Model, crosses: bool) -> Iterator[Declared]:
    """One layer; `crosses`: with attention to an encoder."""
    scheme, biased = SCHEMES[model.init.name](model), model.bias
    hidden, queries, keys = model.hidden, model.heads * model.dim_per_head, model.num_kv_heads * model.dim_per_head
    query, key = scheme.query(hidden, queries), scheme.projection(hidden, keys)
    group = (query,) * (model.heads // model.num_kv_heads) + (key, key)  # each key's queries lie before it
    fused = Normal(group, model.dim_per_head) if query != key else Normal((key,))
    yield from _norms("input_layernorm.", "self_attn_bda.norm.", model)
    yield from _under("self_attention.linear_qkv.", column(hidden, queries + 2 * keys, fused, model.has_qkv_bias))
    yield from _under("self_attention.core_attention.shaw.", shaw(model))
    if model.qk_norm:
        for name in ("q", "k"):
            yield from _under(f"self_attention.{name}_layernorm.", norm(model, model.dim_per_head))
    yield from _under("self_attention.linear_proj.", _into_residual(scheme, queries, hidden, biased))
    if crosses:
        yield from _norms("pre_cross_attn_layernorm.", "cross_attn_bda.norm.", model)
        yield from _under("cross_attention.linear_q.", column(hidden, queries, Normal((query,)), biased))
        yield from _under("cross_attention.linear_kv.", column(hidden, 2 * keys, Normal((key,)), biased))
        yield from _under("cross_attention.linear_proj.", _into_residual(scheme, queries, hidden, biased))
    inner = (2 if model.gated else 1) * model.ffn_dim
    yield from _norms("pre_mlp_layernorm.", "mlp_bda.norm.", model)
    first = Normal((scheme.projection(hidden, inner),))
    yield from _under("mlp.linear_fc1.", column(hidden, inner, first, biased))
    yield from _under("mlp.linear_fc2.", _into_residual(scheme, model.ffn_dim, hidden, biased))


def shaw(model: Model) -> Iterator[Declared]:
    """What Shaw's positions add to the keys, and to the values, of each distance: of each head, or of all."""
    if isinstance(model.positions, ShawPositions):
        shape = (model.heads if model.positions.per_head else 1, model.shaw_rows, model.dim_per_head)
        axes = ("tensor" if model.positions.per_head else None, None, None)
        init = Normal((SCHEMES[model.init.name](model).projection(model.shaw_rows, model.dim_per_head),))
        yield from (Declared(name, shape, axes, init, matrix=True) for name in ("keys", "values"))


def head(model: Model) -> Iterator[Declared]:
    """What makes logits, or is the embedding again; before it, what an encoder needs to predict tokens."""
    if model.capabilities.masked_head:
        yield from _under("head.transform.", _whole(model, model.hidden, model.embedding_dim))
        yield from _under("head.norm.", norm(model, model.embedding_dim))
        if model.binary_head:
            yield from _under("head.pooler.", _whole(model, model.hidden, model.hidden))
            yield from _under("head.next_sentence.", _whole(model, model.hidden, 2))
    if model.capabilities.head_bias:
        bias = _vector("output_layer.bias", model.padded_vocab_size, axis="tensor")
        yield replace(bias, padding=_padding(model))
    output = _vocabulary(model, "output_layer.weight", SCHEMES[model.init.name](model).table())
    yield replace(output, alias_of=WORDS) if model.tie_word_embeddings else output


def norm(model: Model, width: int | None = None) -> Iterator[Declared]:
    """Over the model's width unless another is given."""
    yield _vector("weight", width or model.hidden, start=0.0 if model.norm_type == "rms_zero_centered" else 1.0)
    if model.norm_type == "layer":
        yield _vector("bias", width or model.hidden)


def _norms(before: str, behind: str, model: Model) -> Iterator[Declared]:
    """Of one sublayer."""
    if model.norm != "post":
        yield from _under(before, norm(model))
    if model.norm != "pre":
        yield from _under(behind, norm(model))


def column(inputs: int, outputs: int, init: Normal, bias: bool) -> Iterator[Declared]:
    """A linear layer whose outputs tensor ranks share."""
    yield Declared("weight", (outputs, inputs), ("tensor", None), init, matrix=True)
    if bias:
        yield _vector("bias", outputs, axis="tensor")


def row(inputs: int, outputs: int, init: Normal, bias: bool) -> Iterator[Declared]:
    """A linear layer whose inputs tensor ranks share."""
    yield Declared("weight", (outputs, inputs), (None, "tensor"), init, matrix=True)
    if bias:
        yield _vector("bias", outputs)


def _into_residual(scheme: Plain, inputs: int, outputs: int, bias: bool) -> Iterator[Declared]:
    return row(inputs, outputs, Normal((scheme.into_residual(inputs, outputs),)), bias)


def _whole(model: Model, inputs: int, outputs: int) -> Iterator[Declared]:
    """A linear layer outside of the stacks, which every tensor rank holds."""
    deviation = SCHEMES[model.init.name](model).projection(inputs, outputs)
    yield Declared("weight", (outputs, inputs), (None, None), Normal((deviation,)), matrix=True)
    yield _vector("bias", outputs)


def _table(name: str, rows: int, model: Model) -> Declared:
    init = Normal((SCHEMES[model.init.name](model).table(),))
    return Declared(name, (rows, model.embedding_dim), (None, None), init, matrix=True)


def _vocabulary(model: Model, name: str, deviation: float) -> Declared:
    shape = (model.padded_vocab_size, model.embedding_dim)
    return Declared(name, shape, ("tensor", None), Normal((deviation,)), matrix=True, padding=_padding(model))


def _padding(model: Model) -> int:
    return model.padded_vocab_size - model.vocab_size


def _vector(name: str, size: int, axis: str | None = None, start: float = 0.0) -> Declared:
    return Declared(name, (size,), (axis,), Constant(start), matrix=False)


def _again(parts: Iterable[Declared], prefix: str, first: str) -> Iterator[Declared]:
    """The same values once more, of a layer named `prefix` that is the one named `first`."""
    return (replace(part, alias_of=first + part.name.removeprefix(prefix)) for part in parts)


def _under(prefix: str, parts: Iterable[Declared]) -> Iterator[Declared]:
    return (replace(part, name=prefix + part.name) for part in parts)


def _at(depth: int, prefix: str, parts: Iterable[Declared]) -> Iterator[Declared]:
    return (replace(part, depth=depth) for part in _under(prefix, parts))
