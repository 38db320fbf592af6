"""What does not go with CANINE's characters is refused, and says what to do; shipped configs have the authors' size."""

from pathlib import Path

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.parameters import parameter_specs

CONFIGS = Path(__file__).parents[3] / "configs"


def _load(config: str, *overrides: str) -> RunConfig:
    return load(RunConfig, CONFIGS / f"{config}.yaml", ["model.vocabulary=1000", *overrides])


@pytest.mark.parametrize(
    ("config", "override", "message"),
    [
        (
            "debug/canine",
            "objective={name: masked}",
            "predicts tokens, and model.family=canine reads characters: use character",
        ),
        ("debug/canine", "model.characters.autoregressive=false", "set model.characters.autoregressive=true"),
        ("debug/canine", "objective.buckets=512", "objective.buckets=512 numbers characters otherwise than"),
        ("debug/canine", "model.sequence_length=130", "is not a multiple, at least twice, of model.characters.rate=4"),
        ("debug/canine", "model.sequence_length=2048", "more than the model.characters.buckets=1024 positions"),
        ("debug/canine", "model.characters.hashes=6", "is not a multiple of model.characters.hashes=6"),
        ("debug/canine", "model.attention={pattern: [banded]}", "leave model.attention out"),
        ("debug/canine", "batch.short={sequence_length: 64, steps: 10}", "fewer predictions than model.target_length"),
        ("debug/canine", "precision=fp8", "a model of characters is for fp32, bf16 and fp16"),
        ("debug/canine", "finetune.lora.rank=4", "layers all read as many positions"),
        ("debug/canine", "model.tie_word_embeddings=true", "is not in the canine family"),
        ("debug/bert", "model.characters={}", "model.characters is for the canine family"),
    ],
)
def test_what_does_not_go_together_is_refused(config: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        _load(config, override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("parallel.context=2", "parallel.context gives each rank a slice of the characters.*context=1"),
        ("parallel.sequence=true", "parallel.sequence gives each rank a slice.*sequence=false"),
    ],
)
def test_a_layout_that_cuts_rows_is_refused(override: str, message: str) -> None:
    config = _load("debug/canine", override)
    with pytest.raises(ConfigError, match=message):
        plan_layout(config, config.parallel.model_ranks)


# Elements of transformers' CanineModel, whose pooler pretraining has not here. The paper says 127 million.
@pytest.mark.parametrize("size", ["c", "s"])
def test_it_has_the_size_of_transformers_own_and_its_heads(size: str) -> None:
    model = load(RunConfig, CONFIGS / "canine" / f"{size}.yaml", ["model.vocabulary=30000"]).model
    heads = ("head.", "output_layer.", "characters.known.")
    encoder = sum(spec.size for spec in parameter_specs(model) if not spec.name.startswith(heads))
    assert encoder + 768 * 769 == 132_082_944
    assert model.label_length == {"c": 320, "s": 80}[size]
