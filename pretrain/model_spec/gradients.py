"""Gradients of the matrix products of a training step: which products have one of their weight, and which one of their
input. Where a run trains a part of its model, the others are not computed. No torch."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pretrain.config.model import Model
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameter_spec import ParameterSpec

_PATH: tuple[tuple[str | None, tuple[str, ...]], ...] = (
    (None, ("input_layernorm.",)),
    ("qkv", ("self_attention.linear_qkv.", "self_attention.linear_q_", "self_attention.linear_kv_")),
    (None, ("self_attention.q_layernorm.", "self_attention.k_layernorm.", "self_attention.kv_layernorm.")),
    (None, ("self_attention.query_bias", "self_attention.value_bias")),
    (
        "core",
        (
            *("self_attention.core_attention.", "self_attention.position_"),
            *("self_attention.short.", "self_attention.filter.", "self_attention.residual_filter."),
        ),
    ),
    ("projection", ("self_attention.linear_proj.",)),
    (None, ("self_attn_bda.", "pre_cross_attn_layernorm.")),
    ("cross_q", ("cross_attention.linear_q.",)),
    ("cross_kv", ("cross_attention.linear_kv.",)),
    ("cross_core", ()),
    ("cross_projection", ("cross_attention.linear_proj.",)),
    (None, ("cross_attn_bda.", "pre_mlp_layernorm.")),
    (
        "fc1",
        ("mlp.linear_fc1.", "mlp.gates.", "mlp.router.", "mlp.experts.linear_fc1.", "mlp.shared_experts.linear_fc1."),
    ),
    ("fc2", ("mlp.linear_fc2.", "mlp.out.", "mlp.experts.linear_fc2.", "mlp.shared_experts.linear_fc2.")),
    (None, ("mlp_bda.", "final.", "convolution.")),
)
"""the way through a layer: each product, or None where there is none, and how names of its parameters begin"""
PRODUCTS = (*(name for name, _ in _PATH if name is not None), "distances")
"""products of a layer, in this order wherever they are numbered: its linear layers; `core`, attention between queries,
keys and values, and `cross_core` to an encoder; and `distances`, linear layers on vectors of distances"""
_TRANSFORMS = ("head.transform.weight", "head.pooler.weight", "head.dense.weight")
_ANSWERS = ("head.classifier.weight", "head.detector.weight", "head.end.weight")


@dataclass(frozen=True)
class LayerGradients:
    """Products of one layer that have a gradient of their input, and those that have one of their own weight. The two
    matrices of LoRA beside a weight always have one."""

    inputs: frozenset[str]
    weights: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class ModelGradients:
    """Gradients of a model on one pipeline stage. The input of a later stage has one if anything is trained."""

    layers: tuple[LayerGradients, ...]
    """gradients of each layer, encoder layers first"""
    source_layer: LayerGradients
    """gradients of each layer of a source encoder"""
    has_embedding: bool
    """whether the sum of embeddings has a gradient"""
    embedding_projection: bool
    """whether the weight between the embedding and the first layer has one"""
    head_input: bool
    """whether the last layer's output has one"""
    transform: bool
    """whether a weight before the logits or the answers has one"""
    logits: bool
    """whether the weight of the logits has one"""
    answers: bool
    """whether the weight of a task head's answers has one"""


def model_gradients(model: Model, specs: Sequence[ParameterSpec] | None = None) -> ModelGradients:
    """Gradients of a step of `model`, whose parameters are `specs`."""
    specs = parameter_specs(model) if specs is None else specs
    trained: dict[int, list[str]] = {}
    for spec in specs:
        if spec.trained:
            trained.setdefault(spec.depth, []).append(spec.name)
    names = {name for of_depth in trained.values() for name in of_depth}
    reads_table = any(".distances." in name for name in names)
    layers: list[LayerGradients] = []
    flows = encoder_flows = has_embedding = 0 in trained
    for stack, count in enumerate(model.stacks):
        flows = has_embedding if count else flows
        for _ in range(count):
            local = [_within_layer(name) for name in trained.get(len(layers) + 1, ())]
            reads = encoder_flows and bool(stack) and model.is_encoder_decoder
            gradients, flows = _layer_gradients(local, flows, reads, reads_table)
            layers.append(gradients)
        if count and not stack:
            encoder_flows = flows
    front = model.front_encoder_key
    source = [] if front is None else [name for name in names if name.startswith(f"{front}.")]
    return ModelGradients(
        layers=tuple(layers),
        source_layer=LayerGradients(
            inputs=frozenset(PRODUCTS if source else ()),
            weights=frozenset(PRODUCTS if any("linear_qkv.weight" in name for name in source) else ()),
        ),
        has_embedding=has_embedding,
        embedding_projection=any(".projection.weight" in name for name in trained.get(0, ())),
        head_input=flows,
        transform=not names.isdisjoint(_TRANSFORMS),
        logits="output_layer.weight" in names,
        answers=not names.isdisjoint(_ANSWERS),
    )


def _within_layer(name: str) -> str:
    """The name of a layer's parameter without that of the layer."""
    before, _, after = name.partition(".layers.")
    return after.partition(".")[2] if after else "final." + before


def _layer_gradients(
    trained: Collection[str], flows: bool, encoder_flows: bool, reads_table: bool
) -> tuple[LayerGradients, bool]:
    """Gradients of a layer with these `trained` parameters, and whether its output has one. `flows`: whether its input
    has one; `encoder_flows`: whether the encoder's states have one; `reads_table`: whether the vectors of distances
    have one."""
    inputs, weights = set[str](), set[str]()
    for product, prefixes in _PATH:
        of_step = [name for name in trained if name.startswith(prefixes)] if prefixes else []
        if product is not None:
            if encoder_flows if product == "cross_kv" else flows:
                inputs.add(product)
            if _has_own_weight(of_step):
                weights.add(product)
        flows = flows or bool(of_step) or (product == "cross_kv" and encoder_flows)
    if "qkv" in weights:  # trained alike
        weights.add("distances")
    if reads_table:
        inputs.add("distances")
    return LayerGradients(frozenset(inputs), frozenset(weights)), flows


def _has_own_weight(names: Iterable[str]) -> bool:
    return any(not name.endswith((".lora_a.weight", ".lora_b.weight")) for name in names)
