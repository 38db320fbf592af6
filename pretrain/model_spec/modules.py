"""The parameters of every model, module by module. `models/` builds modules of the same names; where the two disagree,
the build stops with an error (`models/placement.py`)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import gcd, prod

from pretrain.config.finetune import LORA_TARGETS
from pretrain.config.latent_attention import LatentAttention
from pretrain.config.model import Model
from pretrain.config.positions import DisentangledPositions, ShawPositions, TransformerXlPositions
from pretrain.config.task_head import TaskHeadShape
from pretrain.model_spec import monarch_mixer, recurrent
from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.init_schemes import SCHEMES, NormalScheme
from pretrain.model_spec.mtp import PREFIX as MTP
from pretrain.model_spec.mtp import mtp_depths, mtp_layer_name
from pretrain.model_spec.mup import with_mup
from pretrain.model_spec.once import once_for_each
from pretrain.model_spec.parameter_spec import Constant, FanSize, Normal, ParameterSpec

WORD_EMBEDDINGS = "embedding.word_embeddings.weight"
STACK_NAMES = ("encoder", "decoder")
SEQUENCE_PROJECTION = "self_attention.core_attention.projection."
"""prefix, in a layer, of the projections of keys and values along the sequence"""
QUERY_BIASES = ("key_bias", "distance_bias", "segment_bias")
"""Transformer-XL's and XLNet's, in the modules of `distance_scores`"""
TEACHER_PROJECTION = "teacher_projection."
"""prefix of the projection of hidden states to a teacher's, which only training reads"""
SOURCE_ENCODER = "source_encoder."
"""how names of parameters of `model.source_encoder` begin"""
_TRAINED_WITH_SOURCE_ENCODER = frozenset(
    {
        "embedding.encoder.position_embeddings.weight",
        "embedding.decoder.position_embeddings.weight",
        "encoder.layers.0.self_attention.linear_qkv.weight",
    }
)
"""what `finetune.train=source_encoder` trains of the model behind the source encoder (arXiv 1910.13461, section 3.4)"""


def parameter_specs(model: Model, prefix: str = "") -> list[ParameterSpec]:
    """All parameters of `model`. `prefix` is put before their names, for runs that train several models."""
    specs = _parameter_specs(model)
    if not prefix:
        return list(specs)
    return [replace(d, name=prefix + d.name, alias_of=d.alias_of and prefix + d.alias_of) for d in specs]


@once_for_each
def _parameter_specs(model: Model) -> tuple[ParameterSpec, ...]:
    """A run asks eight times before its first step, a plan for every layout."""
    specs = list(_at(0, "", source_encoder(model)))
    specs += _at(0, "embedding.", embeddings(model))
    depth = 0
    for stack, layers in enumerate(model.stacks):
        for number in range(layers):
            depth += 1
            name = f"{STACK_NAMES[stack]}.layers.{number}."
            of_layer = _at(depth, name, _any_layer(model, stack, number))
            if model.shared_layers and number:
                of_layer = _aliases(of_layer, name, f"{STACK_NAMES[stack]}.layers.0.")
            elif stack and model.tie_encoder_decoder:
                of_layer = _shared_where(_is_of_both, of_layer, name, f"{STACK_NAMES[0]}.layers.{number}.")
            elif number and model.shares_projection:
                of_layer = _shared_where(_is_projection, of_layer, name, f"{STACK_NAMES[stack]}.layers.0.")
            elif number and model.shares_biases:
                of_layer = _shared_where(_is_query_bias, of_layer, name, f"{STACK_NAMES[stack]}.layers.0.")
            specs += of_layer
            if model.convolution is not None and not number:
                specs += _at(depth, f"{name}convolution.", convolution(model))
            if number == layers - 1 and model.recurrent is not None:
                specs += _at(depth, f"{STACK_NAMES[stack]}.", recurrent.after_layers(model) if stack else ())
            elif number == layers - 1 and model.norm_first:
                specs += _at(depth, _final_norm(model, name), norm(model))
    specs += _distances_of_chunks(model)
    specs += _at(depth, "characters.", character_output(model))  # trained and frozen with the last layer
    specs += _at(depth + 1, "", multi_token_prediction(model))
    specs += _at(depth + 1, "", head(model))
    return tuple(with_mup(model, _with_rates(model, _with_trained(model, specs))))


def _any_layer(model: Model, stack: int, number: int) -> Iterator[ParameterSpec]:
    if model.recurrent is not None:
        return recurrent.decoder_layer(model, number) if stack else recurrent.encoder_layer(model, number)
    return layer(model, bool(stack) and model.is_encoder_decoder, number)


def _with_trained(model: Model, specs: list[ParameterSpec]) -> list[ParameterSpec]:
    """`specs`, of which those that `finetune` freezes are marked. An alias is frozen where its original is."""
    finetune, head_depth = model.finetune, sum(model.stacks) + 1
    if finetune.train == "all" and finetune.lora is None and finetune.adapters is None:
        return specs
    first_depth = max(1, head_depth - (finetune.layers or 0))

    def is_trained(spec: ParameterSpec) -> bool:
        if finetune.train == "source_encoder":
            return spec.name.startswith(SOURCE_ENCODER) or spec.name in _TRAINED_WITH_SOURCE_ENCODER
        if finetune.lora is None and finetune.adapters is None:
            return spec.depth >= first_depth
        if model.task_head is not None and spec.depth == head_depth:
            return True
        if finetune.lora is not None:
            return _is_lora(spec) or _saved_module(model, spec) in finetune.lora.modules_to_save
        return _is_adapter(spec) or _is_norm(spec)

    trained = {spec.name for spec in specs if is_trained(spec)}
    return [replace(spec, trained=(spec.alias_of or spec.name) in trained) for spec in specs]


def _with_rates(model: Model, specs: list[ParameterSpec]) -> list[ParameterSpec]:
    """`specs` with the learning rates of `finetune.rate_decay` and the order of `finetune.unfreeze_steps`. ELECTRA
    counts the head as two above the last layer (google-research/electra, model/optimization.py, `_get_layer_lrs`)."""
    finetune = model.finetune
    if finetune.lora is not None and finetune.lora.modules_to_save:
        rates = {"embedding": finetune.lora.embedding_rate, "head": finetune.lora.head_rate}
        specs = [replace(spec, lr_mult=rates.get(_saved_module(model, spec), 1.0)) for spec in specs]
    if finetune.rate_decay == 1 and not finetune.unfreeze_steps:
        return specs
    below = {spec.name: _layers_below_head(model, spec) for spec in specs if spec.alias_of is None}
    order = sorted({below[spec.name] for spec in specs if spec.alias_of is None and spec.trained})
    return [
        replace(
            spec,
            lr_mult=spec.lr_mult * (finetune.rate_decay ** (depth + 1) if depth else 1.0),
            frozen_updates=finetune.unfreeze_steps * order.index(depth) if spec.trained else 0,
        )
        for spec in specs
        for depth in [below[spec.alias_of or spec.name]]
    ]


def _layers_below_head(model: Model, spec: ParameterSpec) -> int:
    """0 for the head and for the norm that follows the last layer, 1 for that layer, one more than the number of layers
    for embeddings. Encoder layers are below decoder layers."""
    layers = sum(model.stacks)
    stack = max(stack for stack, count in enumerate(model.stacks) if count)
    last = f"{STACK_NAMES[stack]}.layers.{model.stacks[stack] - 1}."
    follows = model.norm_first and spec.depth == layers and spec.name.startswith(_final_norm(model, last))
    return 0 if follows else layers + 1 - spec.depth


def _final_norm(model: Model, layer_name: str) -> str:
    """Where the norm lies that follows the last layer of a pre-norm stack."""
    return "decoder.final_layernorm." if model.capabilities.first_names else f"{layer_name}final.norm."


def _is_lora(spec: ParameterSpec) -> bool:
    return spec.name.endswith((".lora_a.weight", ".lora_b.weight"))


def _saved_module(model: Model, spec: ParameterSpec) -> str:
    """The name in `finetune.lora.modules_to_save` of the module that a parameter belongs to; "": it is of none."""
    if (spec.alias_of or spec.name) == WORD_EMBEDDINGS:
        return "embedding"
    behind = spec.depth > sum(model.stacks) and not spec.name.startswith((MTP, TEACHER_PROJECTION))
    return "head" if behind and not _is_lora(spec) else ""


def _is_adapter(spec: ParameterSpec) -> bool:
    return ".adapter." in spec.name


def _is_norm(spec: ParameterSpec) -> bool:
    return spec.name.split(".")[-2].endswith("norm")


def source_encoder(model: Model) -> Iterator[ParameterSpec]:
    """The encoder that reads another vocabulary in front of the model's own, if there is one."""
    if model.source_encoder is None:
        return
    source = model.source_model
    yield from _under(f"{SOURCE_ENCODER}embedding.", embeddings(source))
    for number in range(model.source_encoder.layers):
        name = f"{SOURCE_ENCODER}layers.{number}."
        yield from _under(name, layer(source, False, number))
    if model.norm_first:
        yield from _under(_final_norm(source, name), norm(source))


def embeddings(model: Model) -> Iterator[ParameterSpec]:
    """Token embeddings, and for each stack its position and segment embeddings, norm and projection."""
    scheme = SCHEMES[model.init.name](model)
    if model.characters is not None:
        shape = model.characters.hashes * model.characters.buckets, model.hidden // model.characters.hashes
        yield _matrix("word_embeddings.weight", shape, (None, None), Normal((scheme.word_embeddings(),)))
        yield from character_input(model)
    else:
        words = _vocabulary(model, "word_embeddings.weight", scheme.word_embeddings())
        # Rows of clusters are the output's.
        yield words if model.ties_output else replace(words, padding=words.padding + len(model.cutoffs))
    if model.capabilities.query_stream:
        yield _matrix("query", (1, model.embedding_dim), (None, None), Normal((scheme.table(),)))
    lengths = model.position_rows, model.label_length
    for stack, layers, length in zip(STACK_NAMES, model.stacks, lengths, strict=True):
        name = "" if model.capabilities.first_names else f"{stack}."
        if layers and model.positions.name == "learned":
            yield _table(f"{name}position_embeddings.weight", length + model.position_offset, model)
        if layers and model.segments and not model.compares_segments:
            yield _table(f"{name}segment_embeddings.weight", model.segments, model)
        if layers and model.embedding_norm:
            yield from _under(f"{name}norm.", norm(model, model.embedding_dim))
        if layers and model.embedding_size and model.recurrent is None:
            fixed = _replicated_linear(model, model.embedding_size, model.hidden, fan_in=None)
            yield from _under(f"{name}projection.", fixed)
        if layers and isinstance(model.positions, DisentangledPositions):
            yield from _under("distances.", distances(model))
        if layers and model.positions.name == "relative":
            shape = model.relative_num_buckets, model.heads
            yield _matrix(f"relative.{stack}", shape, (None, "tensor"), Normal((scheme.table(),)))


def character_input(model: Model) -> Iterator[ParameterSpec]:
    """What lies between the embedding of characters and the layers: a layer, and a convolution with its norm."""
    assert model.characters is not None
    yield from _under("layer.", layer(model, has_cross_attention=False, number=0))
    yield from _under("down.kernel.", _replicated_linear(model, model.characters.rate * model.hidden, model.hidden))
    yield from _under("down.norm.", norm(model))


def character_output(model: Model) -> Iterator[ParameterSpec]:
    """What lies between the layers and the head of a model that predicts something of characters: a convolution with
    its norm, and a layer; and where each prediction reads those before it, a dense layer with its norm, and a layer."""
    if model.characters is None or not model.ends_in_characters:
        return
    inputs = model.characters.kernel * 2 * model.hidden
    yield from _under("up.kernel.", _replicated_linear(model, inputs, model.hidden))
    yield from _under("up.norm.", norm(model))
    yield from _under("layer.", layer(model, has_cross_attention=False, number=0))
    if model.predicts_in_order:
        yield from _under("known.dense.", _replicated_linear(model, 2 * model.hidden, model.hidden))
        yield from _under("known.norm.", norm(model))
        yield from _under("known.layer.", layer(model, has_cross_attention=False, number=0))


def distances(model: Model) -> Iterator[ParameterSpec]:
    """The vectors of distances that all layers read, and their norm."""
    init = Normal((SCHEMES[model.init.name](model).table(),))
    yield _matrix("weight", (model.distance_rows, model.hidden), (None, None), init)
    if isinstance(model.positions, DisentangledPositions) and model.positions.norm:
        yield from _under("norm.", norm(model))


def convolution(model: Model) -> Iterator[ParameterSpec]:
    """A convolution over three positions, as one matrix of their features, and the norm of its sum with the layer's
    output."""
    yield from _under("kernel.", _replicated_linear(model, 3 * model.hidden, model.hidden))
    yield from _under("norm.", norm(model))


def _distances_of_chunks(model: Model) -> Iterator[ParameterSpec]:
    """The uses of `distances` by layers after the first: each stage has a copy, named after its first layer."""
    if isinstance(model.positions, DisentangledPositions):
        for number in range(1, model.layers):
            name = f"encoder.layers.{number}.distances."
            yield from _at(number + 1, "", _aliases(_under(name, distances(model)), name, "embedding.distances."))


def layer(model: Model, has_cross_attention: bool, number: int) -> Iterator[ParameterSpec]:
    """Transformer layer `number` of its stack, with its adapters, or the matrices that LoRA puts beside its linear
    layers."""
    linears = list(_layer(model, has_cross_attention, number))
    yield from linears
    if model.finetune.adapters is not None:
        for sublayer in ("self_attn_bda", "cross_attn_bda", "mlp_bda"):
            if sublayer != "cross_attn_bda" or has_cross_attention:
                yield from _under(f"{sublayer}.adapter.", adapter(model.hidden, model.finetune.adapters.size))
    if model.finetune.lora is None:
        return
    weights = {spec.name: spec for spec in linears}
    for path in (path for target in model.finetune.lora.targets for path in LORA_TARGETS[target]):
        if f"{path}.weight" in weights:
            yield from _under(f"{path}.", lora(weights[f"{path}.weight"], model.finetune.lora.rank))


def adapter(hidden: int, size: int) -> Iterator[ParameterSpec]:
    """A bottleneck adapter of `size` features. It starts close to the identity: its matrices come from a normal
    distribution of deviation 0.01 that is cut at two deviations (Houlsby et al. 2019)."""
    init = Normal((0.01,), limit=2.0)
    fans: tuple[FanSize, ...] = ("width", None)
    sizes = hidden, size
    for name, at in (("down", 0), ("up", 1)):
        inputs, outputs = sizes[at], sizes[1 - at]
        matrix = _matrix(f"{name}.weight", (outputs, inputs), (None, None), init, fans[at])
        yield replace(matrix, blocks=RowBlocks(), fan_out=fans[1 - at])
        yield _vector(f"{name}.bias", outputs)


def lora(weight: ParameterSpec, rank: int) -> Iterator[ParameterSpec]:
    """A [rank, inputs] and B [outputs, rank] beside a weight [outputs, inputs], each split like it; beside the weights
    of experts, as many as these. B starts at zero, A with the variance of PEFT's A, whose values are uniform between
    -1 / sqrt(inputs) and 1 / sqrt(inputs). B has the blocks of the weight."""
    (*experts, outputs, inputs), (*expert_axis, output_axis, input_axis) = weight.shape, weight.axes
    init = Normal(((3 * inputs) ** -0.5,))
    a = _matrix("lora_a.weight", (*experts, rank, inputs), (*expert_axis, None, input_axis), init, weight.fan_in)
    b = _matrix("lora_b.weight", (*experts, outputs, rank), (*expert_axis, output_axis, None), Constant(0.0))
    of_a = RowBlocks(parts=prod(experts))
    yield from (replace(a, blocks=of_a), replace(b, blocks=weight.blocks, fan_out=weight.fan_out))


def _mixer_layer(model: Model) -> Iterator[ParameterSpec]:
    """A layer of Monarch Mixer, whose only norm follows its feed-forward layer."""
    scheme, hidden = SCHEMES[model.init.name](model), model.hidden
    yield from _under(
        "self_attention.linear_qkv.",
        column(hidden, 3 * hidden, _projection(scheme, hidden), True, monarch_mixer.CHANNELS),
    )
    yield from _under("self_attention.", monarch_mixer.mixer(model))
    yield from _under("self_attention.linear_proj.", row(hidden, hidden, _projection(scheme, hidden), True, "width"))
    yield from _under("mlp.", monarch_mixer.feed_forward(model))
    yield from _under("mlp_bda.norm.", norm(model))


def _projection(scheme: NormalScheme, hidden: int) -> Normal:
    return Normal((scheme.projection(hidden, hidden),))


def _layer(model: Model, has_cross_attention: bool, number: int) -> Iterator[ParameterSpec]:
    if model.long_convolution is not None:
        yield from _mixer_layer(model)
        return
    scheme, biased = SCHEMES[model.init.name](model), model.bias
    hidden, queries, keys = model.hidden, model.heads * model.dim_per_head, model.num_kv_heads * model.dim_per_head
    values = model.heads * model.value_dim
    query, key = scheme.query(hidden, queries), scheme.projection(hidden, keys)
    group = (query,) * (model.heads // model.num_kv_heads) + (key, key)  # the queries of a group precede its key
    fused = Normal(group, model.dim_per_head) if query != key else Normal((key,))
    query_names = ("query",) * (model.heads // model.num_kv_heads)
    of_queries, of_all, of_keys = (
        RowBlocks(names, model.dim_per_head, are_heads=True)
        for names in (("query",), (*query_names, "key", "value"), ("key", "value"))
    )
    yield from _norms("input_layernorm.", "self_attn_bda.norm.", model)
    if model.latent_attention is not None:
        yield from _under("self_attention.", latent_attention(model, model.latent_attention))
    else:
        yield from _under(
            "self_attention.linear_qkv.", column(hidden, queries + 2 * keys, fused, model.has_qkv_bias, of_all)
        )
    yield from _under("self_attention.core_attention.shaw.", shaw(model))
    yield from _under(SEQUENCE_PROJECTION, sequence_projection(model))
    yield from _under("self_attention.", _disentangled(model, Normal((query,)), Normal((key,))))
    yield from _under("self_attention.core_attention.distance_scores.", distance_scores(model))
    if model.qk_norm:
        yield from _query_key_norms(model, queries, keys)
    into_residual = _into_residual(scheme, values, hidden, model.has_projection_bias, "width")
    yield from _under("self_attention.linear_proj.", into_residual)
    if has_cross_attention:
        yield from _norms("pre_cross_attn_layernorm.", "cross_attn_bda.norm.", model)
        yield from _under("cross_attention.linear_q.", column(hidden, queries, Normal((query,)), biased, of_queries))
        yield from _under("cross_attention.linear_kv.", column(hidden, 2 * keys, Normal((key,)), biased, of_keys))
        yield from _under("cross_attention.linear_proj.", _into_residual(scheme, queries, hidden, biased, "width"))
    yield from _norms("pre_mlp_layernorm.", "mlp_bda.norm.", model)
    yield from _under("mlp.", experts(model) if model.has_experts(number) else feed_forward(model, model.ffn_dim))


def latent_attention(model: Model, shape: LatentAttention) -> Iterator[ParameterSpec]:
    """Matrices that make latents, which every tensor rank has, their norms, and matrices that make heads of them."""
    hidden, heads = model.hidden, model.heads
    scheme = SCHEMES[model.init.name](model)

    def up(inputs: int, outputs: int, blocks: RowBlocks, fan_in: FanSize = None) -> Iterator[ParameterSpec]:
        of_heads = column(inputs, outputs, Normal((scheme.projection(inputs, outputs),)), False, blocks)
        return (replace(spec, fan_in=fan_in) for spec in of_heads)

    queries = heads * shape.qk_head_dim
    of_queries = RowBlocks(("query",), shape.qk_head_dim, are_heads=True)
    if shape.q_lora_rank is None:
        yield from _under("linear_q_proj.", up(hidden, queries, of_queries, "width"))
    else:
        yield from _under("linear_q_down_proj.", _latents(model, shape.q_lora_rank))
        yield from _under("q_layernorm.", norm(model, shape.q_lora_rank))
        yield from _under("linear_q_up_proj.", up(shape.q_lora_rank, queries, of_queries))
    latents = shape.kv_lora_rank + shape.qk_rope_head_dim
    yield from _under("linear_kv_down_proj.", _latents(model, latents))
    yield from _under("kv_layernorm.", norm(model, shape.kv_lora_rank))
    # Of each head the rows of its key precede those of its value, which may be more or fewer.
    keys, values = shape.qk_nope_head_dim, shape.v_head_dim
    run = gcd(keys, values)
    names = ("key",) * (keys // run) + ("value",) * (values // run)
    of_heads = RowBlocks(names, run, are_heads=keys == values)
    yield from _under("linear_kv_up_proj.", up(shape.kv_lora_rank, heads * (keys + values), of_heads))


def _latents(model: Model, size: int) -> Iterator[ParameterSpec]:
    return _replicated_linear(model, model.hidden, size, bias=False, fan_out=None)


def _query_key_norms(model: Model, queries: int, keys: int) -> Iterator[ParameterSpec]:
    """Norms of queries and of keys, which span a head, or all of them: tensor ranks then share the features."""
    for name, width in (("q", queries), ("k", keys)):
        prefix = f"self_attention.{name}_layernorm."
        if model.qk_norm_span == "head":
            yield from _under(prefix, norm(model, model.dim_per_head))
        else:
            yield _vector(f"{prefix}weight", width, axis="tensor", start=1.0)


def feed_forward(model: Model, size: int) -> Iterator[ParameterSpec]:
    """A feed-forward layer of `size` features."""
    scheme, hidden, inner = SCHEMES[model.init.name](model), model.hidden, (2 if model.gated else 1) * size
    first = Normal((scheme.projection(hidden, inner),))
    # Rows of gate and value lie side by side.
    of_first = RowBlocks(("gate", "value") if model.gated else ("all",))
    yield from _under("linear_fc1.", column(hidden, inner, first, model.bias, of_first, fan_out="ffn"))
    yield from _under("linear_fc2.", _into_residual(scheme, size, hidden, model.bias, "ffn"))


def experts(model: Model) -> Iterator[ParameterSpec]:
    """A router, the matrices of all experts as one parameter each, and the experts that every token passes through."""
    assert model.experts is not None
    scheme, hidden, count = SCHEMES[model.init.name](model), model.hidden, model.experts.count
    yield _matrix("router.weight", (count, hidden), (None, None), Normal((scheme.projection(hidden, count),)), "width")
    for spec in feed_forward(model, model.expert_ffn_dim):
        name, shape = f"experts.{spec.name}", (count, *spec.shape)
        axes = ("expert", *(None if axis is None else f"expert_{axis}" for axis in spec.axes))
        blocks = None if spec.blocks is None else replace(spec.blocks, parts=count)
        yield replace(spec, name=name, shape=shape, axes=axes, blocks=blocks)
    if model.experts.shared:
        yield from _under("shared_experts.", feed_forward(model, model.experts.shared * model.expert_ffn_dim))


def shaw(model: Model) -> Iterator[ParameterSpec]:
    """Shaw's tables of relative positions, which are added to keys and values: one per head, or one for all heads."""
    if isinstance(model.positions, ShawPositions):
        shape = (model.heads if model.positions.per_head else 1, model.distance_rows, model.dim_per_head)
        axes = ("tensor" if model.positions.per_head else None, None, None)
        init = Normal((SCHEMES[model.init.name](model).projection(model.distance_rows, model.dim_per_head),))
        yield from (_matrix(name, shape, axes, init) for name in ("keys", "values"))


def sequence_projection(model: Model) -> Iterator[ParameterSpec]:
    """Linformer's projections of keys and values along the sequence. The paper says nothing of their initial values:
    these leave keys and values as large as they are."""
    settings = model.attention.projection
    if settings is not None:
        init = Normal((model.sequence_length**-0.5,))
        for name in ("keys", *(() if settings.shares_values else ("values",))):
            shape = settings.projected_length, model.sequence_length
            yield replace(_matrix(name, shape, (None, None), init), blocks=RowBlocks())


def _disentangled(model: Model, query: Normal, key: Normal) -> Iterator[ParameterSpec]:
    """Projections of the vectors of distances, and the biases of queries and values where keys have none."""
    if not isinstance(model.positions, DisentangledPositions):
        return
    width, key_bias = model.heads * model.dim_per_head, model.capabilities.key_bias
    if not model.positions.shared_projections:
        heads = RowBlocks(rows=model.dim_per_head, are_heads=True)
        yield from _under("position_key.", column(model.hidden, width, key, key_bias, heads))
        yield from _under("position_query.", column(model.hidden, width, query, True, heads))
    if not key_bias:
        yield from (_vector(name, width, axis="tensor") for name in ("query_bias", "value_bias"))


def distance_scores(model: Model) -> Iterator[ParameterSpec]:
    """Transformer-XL's terms of attention scores: the projection of distances, the biases of queries for keys and for
    distances, and XLNet's for segments, with the vectors of the query's segment and of others."""
    if not isinstance(model.positions, TransformerXlPositions):
        return
    scheme, heads, width = SCHEMES[model.init.name](model), model.heads, model.dim_per_head
    projection = Normal((scheme.projection(model.hidden, heads * width),))
    table = Normal((scheme.table(),))
    weight = _matrix("projection", (heads, width, model.hidden), ("tensor", None, None), projection, "width")
    yield replace(weight, blocks=RowBlocks(rows=width, are_heads=True))
    for name in QUERY_BIASES[: None if model.compares_segments else -1]:
        yield replace(_matrix(name, (heads, width), ("tensor", None), table), is_matrix=False)
    if model.compares_segments:
        yield _matrix("segments", (heads, 2, width), ("tensor", None, None), table)


def multi_token_prediction(model: Model) -> Iterator[ParameterSpec]:
    """The modules that predict further tokens: of each the norms of its two inputs, their projection, a layer, and the
    norm before the shared head."""
    for depth in mtp_depths(model):
        name = f"{MTP}layers.{depth}."
        yield from _under(f"{name}enorm.", norm(model))
        yield from _under(f"{name}hnorm.", norm(model))
        yield from _under(f"{name}eh_proj.", _replicated_linear(model, 2 * model.hidden, model.hidden, bias=False))
        yield from _under(f"{mtp_layer_name(depth)}.", layer(model, False, model.layers + depth))
        yield from _under(f"{name}final_layernorm.", norm(model))


def head(model: Model) -> Iterator[ParameterSpec]:
    """The output layer, which a tied embedding provides or which has its own weight, and before it the layers that an
    encoder needs to predict tokens; or a task head; or both."""
    if model.teacher_hidden is not None:
        yield from _under(TEACHER_PROJECTION, _output_linear(model, model.hidden, model.teacher_hidden))
    if model.task_head is not None:
        yield from _under("head.", task_head(model, model.task_head))
    if not model.has_vocabulary_logits:
        return
    if model.has_mask_decoder:
        init = Normal((SCHEMES[model.init.name](model).table(),))
        shape = model.sequence_length, model.hidden
        yield _matrix("mask_decoder.positions.position_embeddings.weight", shape, (None, None), init)
    if model.capabilities.masked_head:
        fan_out: FanSize = None if model.embedding_size else "width"
        transform = _replicated_linear(model, model.hidden, model.embedding_dim, fan_out=fan_out)
        yield from _under("head.transform.", transform)
        yield from _under("head.norm.", norm(model, model.embedding_dim))
        if model.binary_head:
            yield from _under("head.pooler.", _replicated_linear(model, model.hidden, model.hidden))
            yield from _under("head.next_sentence.", _output_linear(model, model.hidden, 2))
    if model.capabilities.head_bias:
        bias = _vector("output_layer.bias", model.padded_vocab_size, axis="tensor")
        yield replace(bias, padding=_padding(model))
    output = _vocabulary(model, "output_layer.weight", SCHEMES[model.init.name](model).table())
    yield replace(output, alias_of=WORD_EMBEDDINGS) if model.tie_word_embeddings else output


def task_head(model: Model, settings: TaskHeadShape) -> Iterator[ParameterSpec]:
    """The classifier of a task, and the dense layer before it where one position answers for its row."""
    if settings.kind == "detector":
        if model.capabilities.detector_context:
            yield from _under("norm.", norm(model))
        yield from _under("dense.", _replicated_linear(model, model.hidden, model.hidden))
        yield from _under("detector.", _output_linear(model, model.hidden, settings.outputs))
        return
    if settings.kind == "span":
        yield from _under("start.", _output_linear(model, model.hidden, 1))
        yield from _under("dense.", _replicated_linear(model, model.hidden, model.hidden))
        yield from _under("of_start.", _replicated_linear(model, model.hidden, model.hidden, bias=False))
        yield from _under("norm.", norm(model))
        yield from _under("end.", _output_linear(model, model.hidden, 1))
        return
    if model.has_pooler:
        yield from _under("pooler.", _replicated_linear(model, model.hidden, model.hidden))
    yield from _under("classifier.", _output_linear(model, model.hidden, settings.outputs, bias=model.classifier_bias))


def norm(model: Model, width: int | None = None) -> Iterator[ParameterSpec]:
    """A layer norm or RMS norm of `width` features (default: the hidden size)."""
    yield _vector("weight", width or model.hidden, start=0.0 if model.norm_type == "rms_zero_centered" else 1.0)
    if model.norm_type == "layer":
        yield _vector("bias", width or model.hidden)


def _norms(before: str, after: str, model: Model) -> Iterator[ParameterSpec]:
    """The norms before and after one sublayer."""
    if model.norm != "post":
        yield from _under(before, norm(model))
    if model.norm != "pre":
        yield from _under(after, norm(model))


def column(
    inputs: int, outputs: int, init: Normal, bias: bool, blocks: RowBlocks, *, fan_out: FanSize = "width"
) -> Iterator[ParameterSpec]:  # fmt: skip
    """A column-parallel linear layer of the hidden states: tensor ranks split its outputs."""
    weight = _matrix("weight", (outputs, inputs), ("tensor", None), init, "width")
    yield replace(weight, blocks=blocks, fan_out=fan_out)
    if bias:
        yield _vector("bias", outputs, axis="tensor")


def row(inputs: int, outputs: int, init: Normal, bias: bool, fan_in: FanSize) -> Iterator[ParameterSpec]:
    """A row-parallel linear layer: tensor ranks split its inputs, and its outputs are hidden states."""
    weight = _matrix("weight", (outputs, inputs), (None, "tensor"), init, fan_in)
    yield replace(weight, blocks=RowBlocks(), fan_out="width")
    if bias:
        yield _vector("bias", outputs)


def _into_residual(
    scheme: NormalScheme, inputs: int, outputs: int, bias: bool, fan_in: FanSize
) -> Iterator[ParameterSpec]:  # fmt: skip
    return row(inputs, outputs, Normal((scheme.into_residual(inputs, outputs),)), bias, fan_in)


def _replicated_linear(
    model: Model, inputs: int, outputs: int, bias: bool = True, *, fan_in: FanSize = "width", fan_out: FanSize = "width"
) -> Iterator[ParameterSpec]:
    """A linear layer outside the stacks, replicated on every tensor rank."""
    deviation = SCHEMES[model.init.name](model).projection(inputs, outputs)
    weight = _matrix("weight", (outputs, inputs), (None, None), Normal((deviation,)), fan_in)
    yield replace(weight, blocks=RowBlocks(), fan_out=fan_out)
    if bias:
        yield _vector("bias", outputs)


def _output_linear(model: Model, inputs: int, outputs: int, bias: bool = True) -> Iterator[ParameterSpec]:
    """A linear layer outside the stacks whose outputs nothing but the loss reads."""
    return (replace(spec, blocks=None, fan_out=None) for spec in _replicated_linear(model, inputs, outputs, bias))


def _table(name: str, rows: int, model: Model) -> ParameterSpec:
    init = Normal((SCHEMES[model.init.name](model).table(),))
    return _matrix(name, (rows, model.embedding_dim), (None, None), init)


def _vocabulary(model: Model, name: str, deviation: float) -> ParameterSpec:
    shape = (model.padded_vocab_size, model.embedding_dim)
    return replace(_matrix(name, shape, ("tensor", None), Normal((deviation,))), padding=_padding(model))


def _padding(model: Model) -> int:
    return model.padded_vocab_size - model.output_rows


def _matrix(
    name: str,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    init: Constant | Normal,
    fan_in: FanSize = None,
) -> ParameterSpec:
    return ParameterSpec(name=name, shape=shape, axes=axes, init=init, is_matrix=True, fan_in=fan_in)


def _vector(name: str, size: int, axis: str | None = None, start: float = 0.0) -> ParameterSpec:
    return ParameterSpec(name=name, shape=(size,), axes=(axis,), init=Constant(start), is_matrix=False)


def _shared_where(
    shares: Callable[[str], bool], specs: Iterable[ParameterSpec], prefix: str, first: str
) -> Iterator[ParameterSpec]:  # fmt: skip
    """The parameters of the layer named `prefix`; those whose names in it are shared are aliases of the parameters of
    the layer named `first`."""
    for spec in specs:
        own = spec.name.removeprefix(prefix)
        yield replace(spec, alias_of=first + own) if shares(own) else spec


def _is_projection(name: str) -> bool:
    return name.startswith(SEQUENCE_PROJECTION)


def _is_query_bias(name: str) -> bool:
    return name.endswith(QUERY_BIASES)


def _is_of_both(name: str) -> bool:
    """Whether the layers of an encoder have it as those of a decoder do."""
    return not name.startswith(("cross_attention.", "cross_attn_bda.", "pre_cross_attn_layernorm."))


def _aliases(specs: Iterable[ParameterSpec], prefix: str, first: str) -> Iterator[ParameterSpec]:
    """The parameters of the layer named `prefix` as aliases of those of the layer named `first`."""
    return (replace(spec, alias_of=first + spec.name.removeprefix(prefix)) for spec in specs)


def _under(prefix: str, specs: Iterable[ParameterSpec]) -> Iterator[ParameterSpec]:
    return (spec.at(prefix + spec.name) for spec in specs)


def _at(depth: int, prefix: str, specs: Iterable[ParameterSpec]) -> Iterator[ParameterSpec]:
    return (spec.at(prefix + spec.name, depth) for spec in specs)
