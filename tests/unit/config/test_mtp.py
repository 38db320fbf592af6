"""`model.mtp`: its parameters and operations, which layers have experts, and what is refused."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from pretrain.config.load import load
from pretrain.config.model import Model
from pretrain.config.mtp import Mtp
from pretrain.config.run_config import RunConfig
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.mtp import expert_layer_names
from pretrain.model_spec.parameters import num_parameters
from pretrain.model_spec.router_biases import router_bias_shapes
from pretrain.plan.memory_bound import count_parameters
from tests.helpers.families import family_config
from tests.helpers.small_configs import small_model

MTP: dict[str, Any] = {"num_layers": 2}
LLAMA: dict[str, Any] = {"family": "llama", "norm_type": "rms", "bias": False, "positions": "rotary"}


def _further(model: Model) -> int:
    """Parameters of the modules alone."""
    return sum(spec.size for spec in parameter_specs(model) if spec.name.startswith("mtp."))


def test_deepseek_v3_has_the_published_size() -> None:
    """The module has 14B of the 685B on Hugging Face: it holds a copy of the embedding and of the output layer there
    (684,489,830,400 weights in BF16 and F8, beside biases of routers and scales)."""
    main = load(RunConfig, "pretrain/configs/deepseek-v3/671b.yaml").model.model_copy(update={"mtp": None})
    model = main.model_copy(update={"mtp": Mtp(num_layers=1)})
    assert num_parameters(model, padded=False) - num_parameters(main, padded=False) == _further(model)
    assert _further(model) == 11_610_067_968
    assert num_parameters(model, padded=False) + 2 * main.vocab_size * main.hidden == 684_489_830_400
    assert count_parameters(model) == num_parameters(model)


def test_a_module_has_two_norms_a_projection_a_layer_and_a_norm() -> None:
    model = family_config("llama", model={"mtp": MTP}).model
    names = [spec.name for spec in parameter_specs(model)]
    of_layer = [name.removeprefix("decoder.layers.2.") for name in names if name.startswith("decoder.layers.2.")]
    expected = ["enorm.weight", "hnorm.weight", "eh_proj.weight"]
    expected += [*(f"transformer_layer.{name}" for name in of_layer), "final_layernorm.weight"]
    assert [n.removeprefix("mtp.layers.1.") for n in names if n.startswith("mtp.layers.1.")] == expected


def test_its_layers_are_like_the_last() -> None:
    model = family_config("biased_experts", model={"mtp": MTP}).model
    assert list(expert_layer_names(model)) == [
        *(f"decoder.layers.{number}" for number in (1, 2, 3)),
        *(f"mtp.layers.{depth}.transformer_layer" for depth in (0, 1)),
    ]
    assert "mtp.layers.1.transformer_layer.mlp.router.bias" in router_bias_shapes(model)


def test_operations_counted_by_hand() -> None:
    """Each module adds a projection of 8 to 4, a layer, and 10 logits of 4 at every position."""
    plain, further = small_model(**LLAMA), small_model(**LLAMA, mtp=MTP)
    layer = training_flops_per_token(small_model(**LLAMA | {"layers": 2})) - training_flops_per_token(plain)
    expected = training_flops_per_token(plain) + 2 * (layer + 6 * (8 * 4 + 10 * 4))
    assert training_flops_per_token(further) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("family", "sections", "sentence"),
    [
        ("ctrl", {}, "model.mtp is for the llama family: leave it out for ctrl"),
        ("llama", {"model": {"norm": "post"}}, "which model.norm=post has not"),
        ("llama", {"model": {"shared_layers": True}}, "leave out model.shared_layers"),
        ("llama", {"model": {"mup": {"base_width": 32}}}, "model.mup does not say"),
        ("llama", {"model": {"mtp": {"num_layers": 0}}}, "greater than 0"),
        ("llama", {"objective": {"name": "span_corruption"}}, "objective.name=span_corruption"),
        ("llama", {"objective": {"label_smoothing": 0.1}}, "objective.label_smoothing: set it to 0"),
        ("llama", {"precision": "fp8"}, "precision=fp8: use bf16"),
        (
            "llama",
            {"optimizer": {"name": "muon", "qk_clip_threshold": 100.0}},
            "and model.mtp has others behind them",
        ),
        ("llama", {"finetune": {"lora": {"rank": 2}}}, "finetune: leave it out"),
    ],
)
def test_what_it_is_not_trained_with_is_refused(family: str, sections: dict[str, Any], sentence: str) -> None:
    model = {"mtp": MTP} | sections.get("model", {})
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        family_config(family, **{**sections, "model": model})
