"""QK-Clip's rule: heads whose largest score is beyond the threshold have just that score with the scaled weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.config.load import validate
from pretrain.config.run_config import RunConfig
from pretrain.engine.megatron.qk_clip import StepScores
from pretrain.errors import ConfigError
from tests.helpers.families import family_config

THRESHOLD = 0.5


def _config(name: str = "llama", optimizer: dict[str, Any] | None = None, **model: Any) -> RunConfig:
    tree = family_config(name, model=model).model_dump(mode="json")
    clip = {"name": "muon", "learning_rate": 1e-3, "qk_clip_threshold": 100.0}
    return validate(RunConfig, {**tree, "optimizer": clip if optimizer is None else optimizer}, "config")


def _rows(config: RunConfig, largest_H: Tensor) -> dict[str, Tensor]:
    layers = config.model.layers
    scores = StepScores(config.model, THRESHOLD, [1], largest_H.expand(layers, -1))
    return {name.removeprefix("decoder.layers.1.self_attention."): rows for name, rows in scores.row_factors().items()}


@pytest.mark.parametrize("kv_heads", [None, 2])
def test_scores_of_scaled_weights_are_no_larger(kv_heads: int | None) -> None:
    """Queries and keys are made here so that some heads have a score of 2 and more."""
    config = _config(kv_heads=kv_heads)
    heads, width = config.model.heads, config.model.dim_per_head
    groups = kv_heads or heads
    x_SH = torch.randn(30, config.model.hidden, generator=torch.Generator().manual_seed(1))
    rows = (heads + 2 * groups) * width
    weight = torch.randn(rows, config.model.hidden, generator=torch.Generator().manual_seed(2)) / 8
    weight *= torch.linspace(0.05, 1, groups).repeat_interleave(rows // groups)[:, None]  # the first heads score less

    def scores(weight: Tensor) -> tuple[Tensor, Tensor]:
        made = (x_SH @ weight.T).view(30, groups, heads // groups + 2, width)
        q, k, v = made.split([heads // groups, 1, 1], dim=2)
        return torch.einsum("sgnd,tgod->gnst", q, k).amax((2, 3)).flatten() * config.model.score_scale, v

    before, values = scores(weight)
    assert before.min() < THRESHOLD < before.max()
    factors = _rows(config, before)
    assert set(factors) == {"linear_qkv.weight"}
    after, same_values = scores(weight * factors["linear_qkv.weight"][:, None])
    assert torch.equal(same_values, values)
    ratio = (THRESHOLD / before.view(groups, -1).amax(1, keepdim=True)).clamp(max=1)  # all heads that share a key
    torch.testing.assert_close(after.view(groups, -1), before.view(groups, -1) * ratio)
    torch.testing.assert_close(after.max(), torch.tensor(THRESHOLD))


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_of_latent_attention_what_positions_turn_is_scaled_in_queries_alone(name: str) -> None:
    config = _config(name)
    shape = config.model.latent_attention
    assert shape is not None
    factors = _rows(config, torch.tensor([0.1, 0.5, 2.0, 8.0]))
    queries = factors["linear_q_proj.weight" if shape.q_lora_rank is None else "linear_q_up_proj.weight"]
    plain, turned = queries.view(4, -1).split([shape.qk_nope_head_dim, shape.qk_rope_head_dim], dim=1)
    keys, values = factors["linear_kv_up_proj.weight"].view(4, -1).split([shape.qk_nope_head_dim, shape.v_head_dim], 1)
    expected = torch.tensor([1.0, 1.0, 0.25, 0.0625])[:, None]
    torch.testing.assert_close(plain, expected.sqrt().expand_as(plain))
    torch.testing.assert_close(keys, expected.sqrt().expand_as(keys))
    torch.testing.assert_close(turned, expected.expand_as(turned))
    assert (values == 1).all()


def test_a_head_that_has_seen_nothing_is_left_alone() -> None:
    factors = _rows(_config(), torch.tensor([-torch.inf, -3.0, 0.5, 0.0]))
    assert (factors["linear_qkv.weight"] == 1).all()


def test_figures_of_a_step_without_scores_are_left_out() -> None:
    scores = StepScores(_config().model, THRESHOLD, [], torch.tensor([[-torch.inf, 3.0], [0.5, 0.6]]))
    assert scores.read(scores.values.tolist()) == {"max_attention_score": 3.0, "clipped_heads": 2.0}
    nothing = StepScores(_config().model, THRESHOLD, [], torch.full((2, 2), -torch.inf))
    assert nothing.read(nothing.values.tolist()) == {"clipped_heads": 0.0}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bert", "is for language models that are decoders"),
        ("t5", "is for language models that are decoders"),
        ("bloom", "model.positions=alibi adds to their products"),
        ("qwen3", "model.qk_norm gives queries and keys one size"),
        ("gemma2", "as model.attention_logit_softcap does"),
    ],
)
def test_models_whose_scores_do_not_follow_weights_are_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _config(name)


def test_other_optimizers_have_no_such_key() -> None:
    with pytest.raises(ConfigError, match="qk_clip_threshold"):
        _config(optimizer={"name": "adamw", "learning_rate": 1e-3, "qk_clip_threshold": 100.0})
