"""`generator`: which runs have one, and on which layouts."""

from typing import Any

import pytest
from pydantic import ValidationError

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.generator import generator_specs, run_specs
from pretrain.model_spec.parameter_spec import Constant
from pretrain.plan.planner import check_one_model
from pretrain.verify.bounds import bounds_of
from tests.helpers.families import FAMILIES
from tests.helpers.tiny import tiny_config

GENERATOR = {"hidden": 32, "heads": 4}


def _config(**sections: Any) -> RunConfig:
    model = FAMILIES["electra"]["model"] | sections.pop("model", {})
    tree: dict[str, Any] = {"generator": GENERATOR, "objective": {"name": "replaced_tokens"}} | sections
    return tiny_config(model=model, **tree)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"generator": None}, "go together"),
        ({"objective": {"name": "masked"}}, "go together"),
        ({"model": {"family": "bert"}}, "is for model.family=electra"),
        ({"model": {"tie_word_embeddings": False}}, "set model.tie_word_embeddings=true"),
        ({"finetune": {"train": "head"}}, "leave out finetune and distillation"),
        ({"generator": {"hidden": 30, "heads": 4}}, "is not a multiple of model.heads=4"),
        ({"precision": "fp8"}, "is for fp32, bf16 and fp16"),
        ({"model": FAMILIES["deberta_v2"]["model"] | {"embedding_size": None}}, "set generator.hidden=64"),
    ],
)
def test_a_generator_that_does_not_suit_the_run_is_refused(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        _config(**sections)


@pytest.mark.parametrize(
    ("parallel", "ranks", "sentence"),
    [
        ({"pipeline": 4}, 4, "generator is computed on the layout of the model, and model.layers=2"),
    ],
)
def test_layouts_that_a_generator_does_not_support_are_refused(
    parallel: dict[str, Any], ranks: int, sentence: str
) -> None:
    layers = {"layers": 2} if "pipeline" in parallel else {}
    with pytest.raises(ConfigError, match=sentence):
        plan_layout(_config(parallel=parallel, generator=GENERATOR | layers), ranks)


def test_the_tables_that_both_models_use_are_declared_once() -> None:
    config = _config()
    names = [spec.name for spec in run_specs(config)]
    assert len(names) == len(set(names))
    own = [spec.name for spec in generator_specs(config)]
    assert all(name.startswith("generator.") for name in own)
    assert not any(name.endswith(("word_embeddings.weight", "position_embeddings.weight")) for name in own)
    assert "generator.embedding.encoder.norm.weight" in own
    assert "generator.output_layer.bias" in own
    assert "generator.output_layer.weight" not in own


def test_tables_of_which_one_is_added_to_the_other_are_both_declared() -> None:
    config = _config(generator=GENERATOR | {"hidden": 64, "embedding_sharing": "gdes"})
    specs = {spec.name: spec for spec in run_specs(config)}
    for name in ("word_embeddings", "encoder.position_embeddings", "encoder.segment_embeddings"):
        assert specs[f"embedding.{name}.weight"].init == Constant(0.0)
        assert specs[f"generator.embedding.{name}.weight"].init != Constant(0.0)
        assert specs[f"embedding.{name}.weight"].decays
    assert specs["embedding.encoder.norm.weight"].init == Constant(1.0)


def test_scaling_laws_refuse_a_generator() -> None:
    with pytest.raises(ConfigError, match="this run computes two"):
        check_one_model(_config())


def test_two_models_have_the_bounds_of_one() -> None:
    for precision in ("fp32", "bf16"):
        assert bounds_of(_config(precision=precision), None) == bounds_of(tiny_config(precision=precision), None)
