"""`model.latent_attention`: what it counts, which scale its scores have, and what is refused."""

import math
import re
from typing import Any

import pytest
from pydantic import ValidationError

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.model_spec.modules import parameter_specs
from pretrain.verify.shrink import shrink
from tests.helpers.families import family_config

SIZES = {"q_lora_rank": 20, "kv_lora_rank": 24, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 12}


def _config(family: str = "latent", **sections: Any) -> RunConfig:
    return family_config(family, **sections)


def test_tensor_ranks_share_heads_and_have_what_makes_latents() -> None:
    prefix = "decoder.layers.0.self_attention."
    specs = {spec.name.removeprefix(prefix): spec for spec in parameter_specs(_config().model) if prefix in spec.name}
    assert {name: (spec.shape, spec.axes) for name, spec in specs.items()} == {
        "linear_q_down_proj.weight": ((20, 64), (None, None)),
        "q_layernorm.weight": ((20,), (None,)),
        "linear_q_up_proj.weight": ((64, 20), ("tensor", None)),
        "linear_kv_down_proj.weight": ((30, 64), (None, None)),
        "kv_layernorm.weight": ((24,), (None,)),
        "linear_kv_up_proj.weight": ((88, 24), ("tensor", None)),
        "linear_proj.weight": ((64, 48), (None, "tensor")),
    }
    rows = specs["linear_kv_up_proj.weight"].blocks.rows_of(88, False)
    assert rows["key"].tolist()[:12] == [*range(10), 22, 23], "the key of a head precedes its value"


def test_queries_without_latents_are_made_of_hidden_states() -> None:
    sizes = SIZES | {"q_lora_rank": None}
    names = [spec.name for spec in parameter_specs(_config(model={"latent_attention": sizes}).model)]
    assert "decoder.layers.0.self_attention.linear_q_proj.weight" in names
    assert not any("linear_q_down" in name or "q_layernorm" in name for name in names)


def test_operations_are_those_of_its_matrices_and_of_keys_and_values_of_their_own_width() -> None:
    model = _config().model
    matrices = 64 * 20 + 20 * 64 + 64 * 30 + 24 * 88 + 48 * 64 + 3 * 64 * 160
    keys = (model.sequence_length + 1) / 2
    of_layers = 4 * (matrices + 4 * (16 + 12) * keys)
    assert training_flops_per_token(model) == pytest.approx(6 * (of_layers + 64 * model.vocab_size))


def test_yarn_scales_scores_and_rotations() -> None:
    scaling = {"name": "yarn", "factor": 40, "original_length": 16, "mscale": 0.7, "mscale_all_dim": 1.3}
    positions = {"name": "rotary", "scaling": scaling}
    magnitude = 0.1 * 1.3 * math.log(40) + 1
    model = _config(model={"positions": positions}).model
    assert model.score_scale == pytest.approx(magnitude**2 / 4)
    assert model.positions.scaling.gain == pytest.approx((0.1 * 0.7 * math.log(40) + 1) / magnitude)
    with pytest.raises(ValidationError, match=r"mscale and mscale_all_dim are for model.latent_attention"):
        _config("llama", model={"positions": positions})


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"latent_attention": SIZES | {"qk_rope_head_dim": 5}}}, "qk_rope_head_dim=5 is odd"),
        ({"model": {"latent_attention": SIZES | {"v_head_dim": 17}}}, "v_head_dim=17 is more than qk_nope_head_dim"),
        ({"model": {"positions": "alibi"}}, "model.positions=alibi would leave these without one"),
        ({"model": {"positions": {"name": "rotary", "local_base": 10}}}, "leave out model.positions.local_base"),
        ({"model": {"head_dim": 16}}, "leave out model.head_dim and model.kv_heads"),
        ({"model": {"kv_heads": 2}}, "leave out model.head_dim and model.kv_heads"),
        ({"model": {"bias": True}}, "model.latent_attention has no biases"),
        ({"model": {"norm_type": "layer"}}, "set model.norm_type=rms, not layer"),
        ({"model": {"qk_norm": True}}, "in place of norms of queries and keys"),
        ({"model": {"mup": {"base_width": 32}}}, "model.mup does not say how latents grow"),
        ({"precision": "fp8"}, "model.latent_attention is for fp32, bf16 and fp16"),
        ({"finetune": {"lora": {"rank": 2}}}, "finetune.lora.targets: qkv is one matrix"),
        (
            {"optimizer": {"name": "muon", "learning_rate": 1e-3, "per_head": True}},
            "qk_nope_head_dim=10 and v_head_dim=12",
        ),
    ],
)
def test_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        _config(**sections)


def test_other_families_have_none() -> None:
    with pytest.raises(ValidationError, match=r"model\.latent_attention is for the llama family: leave it out for t5"):
        _config("t5v1.1", model={"latent_attention": SIZES})


def test_verify_takes_sizes_that_differ() -> None:
    config = _config("deepseek_v3")
    small = shrink(config, [plan_layout(config, 1)]).model.latent_attention
    assert small is not None
    assert len({small.q_lora_rank, small.kv_lora_rank, small.qk_nope_head_dim, small.v_head_dim}) == 4
    assert small.v_head_dim < small.qk_head_dim


def test_context_ranks_share_heads() -> None:
    with pytest.raises(ConfigError, match=r"parallel.context=8 does not divide"):
        plan_layout(_config(parallel={"context": 8}), 8)
