"""Maximal update parametrization against the table, worked out by hand; and what is refused."""

import re
from math import prod, sqrt
from typing import Any

import pytest

from pretrain.config.families import CAPABILITIES
from pretrain.config.load import validate
from pretrain.config.model import Model
from pretrain.config.optimizer import MuonOptimizer
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.mup import muon_rate
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from tests.helpers.families import FAMILIES, family_config

_TABLES = re.compile(r"embeddings\.weight|^output_layer|relative\.|shaw\.|\.lora_b\.|adapter\.up|positions\.")


def _model(**changes: Any) -> Model:
    """Width 128 with 2 layers and heads of 16, tuned at width 32 with `model.mup`."""
    tree = {
        "layers": 2, "hidden": 128, "heads": 8, "sequence_length": 16, "vocabulary": 100, "init": {"std": 0.08},
        "mup": {"base_width": 32},
    }  # fmt: skip
    return validate(Model, {**tree, **changes}, "model")


def _by_name(model: Model) -> dict[str, ParameterSpec]:
    return {spec.name: spec for spec in parameter_specs(model)}


def _figures(spec: ParameterSpec) -> tuple[Any, float, float, float]:
    """(initial deviation or value, multipliers of learning rate, decay and eps)."""
    init = spec.init.deviations[0] if isinstance(spec.init, Normal) else spec.init.value
    return init, spec.lr_mult, spec.wd_mult, spec.eps_mult


@pytest.mark.parametrize("tied", [True, False])
def test_each_kind_of_parameter_at_four_times_the_width(tied: bool) -> None:
    found = _by_name(_model(tie_word_embeddings=tied))
    layer = "decoder.layers.1."
    for name, expected in {
        "embedding.word_embeddings.weight": (0.08, 1, 1, 0.25),
        "embedding.position_embeddings.weight": (0.08, 1, 1, 0.25),
        "output_layer.weight": (0.08, 1, 1, 0.25),
        "decoder.final_layernorm.weight": (1.0, 1, 1, 0.25),
        f"{layer}self_attention.linear_qkv.weight": (0.04, 0.25, 4, 0.25),
        f"{layer}self_attention.linear_qkv.bias": (0.0, 1, 1, 0.25),
        f"{layer}self_attention.linear_proj.weight": (0.02, 0.25, 4, 0.25),  # 4 additions to the residual stream
        f"{layer}mlp.linear_fc1.weight": (0.04, 0.25, 4, 0.25),
        f"{layer}mlp.linear_fc2.weight": (0.02, 0.25, 4, 0.25),
    }.items():
        assert _figures(found[name]) == pytest.approx(expected), name


def test_an_untied_head_may_start_at_zero() -> None:
    found = _by_name(_model(tie_word_embeddings=False, mup={"base_width": 32, "zero_head": True}))
    assert _figures(found["output_layer.weight"]) == (0.0, 1, 1, 0.25)
    with pytest.raises(ConfigError, match="would start the embedding at zero"):
        _model(mup={"base_width": 32, "zero_head": True})


def test_each_kind_of_input_has_its_own_ratio() -> None:
    """Feed-forward layers 8 times as large as the base's, between states of 4 times its width."""
    found = _by_name(_model(ffn=1024, mup={"base_width": 32, "base_ffn": 128}))
    assert _figures(found["decoder.layers.0.mlp.linear_fc1.weight"]) == pytest.approx((0.04, 0.25, 4, 0.25))
    down = 0.08 / (8**0.5 * 2), 0.125, 8, 0.25
    assert _figures(found["decoder.layers.0.mlp.linear_fc2.weight"]) == pytest.approx(down)


def test_a_router_and_experts_are_linear_layers() -> None:
    model = family_config("qwen3_moe", model={"mup": {"base_width": 16}}).model
    found = {name: spec for name, spec in _by_name(model).items() if "experts" in name or "router" in name}
    assert {"router", "experts"} <= {part for name in found for part in name.split(".")}
    for name, spec in found.items():
        assert _figures(spec)[1:] == pytest.approx((0.25, 4, 0.25)), name


def test_schemes_that_follow_the_width_follow_it_in_layers_only() -> None:
    for init, rows in (("t5", 1.0), ("xavier", 32**-0.5)):
        model = {"family": "transformer", "encoder_layers": 2, "target_length": 16, "init": init}
        wide, standard = (_by_name(_model(**model, mup=mup)) for mup in ({"base_width": 32}, None))
        assert _figures(wide["embedding.word_embeddings.weight"])[0] == pytest.approx(rows)
        for name, spec in wide.items():
            if spec.fan_in is not None:
                assert spec.init == standard[name].init, name


def test_forward_multipliers() -> None:
    multipliers = {"base_width": 32, "input_multiplier": 10.0, "output_multiplier": 2.0}
    found = _model(mup=multipliers)
    assert (found.input_multiplier, found.output_multiplier) == (10.0, 0.5)
    assert found.score_scale == 16**-0.5
    wider_heads = _model(heads=2, mup={"base_width": 32, "base_head_dim": 16})
    assert wider_heads.score_scale == pytest.approx(16**0.5 / 64)
    albert = _model(family="albert", embedding_size=16, segments=2, mup={"base_width": 32}, norm="post")
    assert albert.output_multiplier == 1.0  # its logits are products of 16 features at any width
    found_albert = _by_name(albert)
    assert found_albert["embedding.encoder.projection.weight"].lr_mult == 1
    assert found_albert["head.transform.weight"].lr_mult == 0.25


def _with_mup(name: str) -> bool:
    model = family_config(name).model
    return "mup" in CAPABILITIES[model.family].parts and model.latent_attention is None


@pytest.mark.parametrize("name", [name for name in FAMILIES if _with_mup(name)])
def test_at_the_base_s_width_nothing_changes(name: str) -> None:
    model = family_config(name).model
    same = family_config(name, model={"mup": {"base_width": model.hidden}}).model
    assert parameter_specs(same) == parameter_specs(model)
    assert (same.input_multiplier, same.output_multiplier, same.score_scale) == (1.0, 1.0, model.score_scale)
    assert same.base_width == model.hidden


@pytest.mark.parametrize("finetune", [{}, {"lora": {"rank": 4}}, {"adapters": {"size": 8}}])
@pytest.mark.parametrize("name", [name for name in FAMILIES if _with_mup(name)])
def test_a_matrix_says_that_its_inputs_grow_where_they_do(name: str, finetune: dict[str, Any]) -> None:
    """Against the shapes of a model of twice the width. Experts have no LoRA."""
    if "lora" in finetune and "experts" in FAMILIES[name]["model"]:
        finetune = {"lora": {"rank": 4, "targets": ["qkv", "projection"]}}
    one = family_config(name, finetune=finetune).model
    two = one.model_copy(update={"hidden": 2 * one.hidden, "heads": 2 * one.heads, "ffn": 2 * one.ffn_dim})
    if one.kv_heads is not None:
        two = two.model_copy(update={"kv_heads": 2 * one.kv_heads})
    if one.experts is not None:
        two = two.model_copy(update={"experts": one.experts.model_copy(update={"ffn": 2 * one.expert_ffn_dim})})
    two = two.trained_by(one.finetune)
    for narrow, wide in zip(parameter_specs(one), parameter_specs(two), strict=True):
        assert narrow.name == wide.name
        if narrow.is_matrix and not _TABLES.search(narrow.name):
            assert (wide.shape[-1] == 2 * narrow.shape[-1]) == (narrow.fan_in is not None), narrow.name
        else:
            assert narrow.fan_in is None, narrow.name
        if narrow.blocks is not None:
            rows = prod(wide.shape[:-1]) / prod(narrow.shape[:-1])
            assert rows == (1 if narrow.fan_out is None else 2), narrow.name
        else:
            assert narrow.fan_out is None, narrow.name


def _muon_step(model: Model, name: str, block: str, **settings: Any) -> tuple[float, float]:
    """(the spectral norm that a step of Muon has, decay of weights) of a matrix, at a rate of 1."""
    optimizer = MuonOptimizer(learning_rate=1.0, weight_decay=0.1, **settings)
    spec = _by_name(model)[name]
    assert spec.blocks is not None
    rows = spec.blocks.rows_of(prod(spec.shape[:-1]), optimizer.per_head)[block]
    step = spec.lr_mult * muon_rate(optimizer, spec, len(rows), spec.shape[-1])
    return step, spec.lr_mult * spec.wd_mult * optimizer.weight_decay


_LAYER = "decoder.layers.0."


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize(
    ("name", "block", "changes", "expected"),
    [
        ("self_attention.linear_qkv.weight", "query", {}, 1.0),
        ("self_attention.linear_proj.weight", "all", {}, 1.0),
        ("mlp.linear_fc1.weight", "all", {}, 1.0),
        ("mlp.linear_fc2.weight", "all", {}, 1.0),
        ("mlp.linear_fc1.weight", "all", {"ffn": 256}, sqrt(2 / 4)),
        ("mlp.linear_fc2.weight", "all", {"ffn": 256}, sqrt(4 / 2)),
        ("self_attention.linear_qkv.weight", "key.1", {"per_head": True}, sqrt(1 / 4)),
    ],
)
def test_steps_of_muon_grow_as_outputs_over_inputs(
    adjust: str, name: str, block: str, changes: dict[str, Any], expected: float
) -> None:
    """At 4 times the width, relative to the base's: the spectral condition, and the decay that stays."""
    per_head = {"per_head": changes.get("per_head", False)}
    wide = _model(mup={"base_width": 32, "base_ffn": 128}, ffn=changes.get("ffn", 512))
    base = _model(hidden=32, heads=2, ffn=128)
    step, decay = _muon_step(wide, _LAYER + name, block, adjust_lr_fn=adjust, **per_head)
    base_step, base_decay = _muon_step(base, _LAYER + name, block, adjust_lr_fn=adjust, **per_head)
    assert step / base_step == pytest.approx(expected)
    assert decay == pytest.approx(base_decay)


def test_muon_s_other_parameters_have_the_rates_of_adam() -> None:
    experts = family_config("qwen3_moe", model={"mup": {"base_width": 16}}).model
    router = next(spec for spec in parameter_specs(experts) if spec.name.endswith("router.weight"))
    assert router.blocks is None
    assert (router.lr_mult, router.wd_mult) == (0.25, 4)
    embedding = _by_name(_model())["embedding.word_embeddings.weight"]
    assert (embedding.blocks, embedding.lr_mult, embedding.eps_mult) == (None, 1, 0.25)


@pytest.mark.parametrize(
    ("name", "sections", "words"),
    [
        ("xlnet", {}, "model.mup is for the gpt"),
        ("electra", {}, "leave it out for electra"),
        ("bloom", {"model": {"mup": {"base_width": 32, "input_multiplier": 2.0}}}, "undone by the norm"),
        ("qwen3", {"model": {"mup": {"base_width": 32, "base_head_dim": 8}}}, "than model.qk_norm does"),
        ("t5", {"model": {"mup": {"base_width": 32, "base_head_dim": 16}}}, "than model.positions=relative does"),
        ("llama", {"optimizer": {"name": "lamb"}}, "which optimizer.name=lamb is not: use adamw"),
        (
            "llama",
            {"optimizer": {"name": "muon", "per_head": True}, "model": {"mup": {"base_width": 32, "base_head_dim": 4}}},
            "leave out model.mup.base_head_dim",
        ),
        ("llama", {"optimizer": {"name": "adagrad"}}, "which optimizer.name=adagrad is not"),
        ("llama", {"optimizer": {"name": "adafactor"}}, "optimizer.scale_parameter=true makes steps relative"),
        ("llama", {"optimizer": {"name": "adam", "weight_decay": 0.1}}, "set optimizer.weight_decay=0"),
    ],
)
def test_what_would_not_transfer_is_refused(name: str, sections: dict[str, Any], words: str) -> None:
    tree = family_config(name).model_dump(mode="json")
    tree["model"]["mup"] = {"base_width": 32}
    for section, values in sections.items():
        tree[section] = values | {"learning_rate": 1e-3} if section == "optimizer" else {**tree[section], **values}
    with pytest.raises(ConfigError, match=re.escape(words)):
        validate(RunConfig, tree, "config")


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "lion"},
        {"name": "muon"},
        {"name": "adafactor", "scale_parameter": False},
        {"name": "adam", "weight_decay": 0},
    ],
)
def test_rules_with_steps_of_one_size_are_not(optimizer: dict[str, Any]) -> None:
    config = family_config("llama", model={"mup": {"base_width": 32}}).model_dump(mode="json")
    validate(RunConfig, {**config, "optimizer": optimizer | {"learning_rate": 1e-3}}, "config")
