"""`model.source_encoder`: what it adds, what each stage trains, and what is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.interop.hf.registry import hf_family_of
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameters import num_parameters
from pretrain.model_spec.split import split_layers
from pretrain.observe.ending import next_commands
from pretrain.plan.memory_bound import count_parameters
from pretrain.plan.planner import check_one_model
from tests.helpers.families import family_config
from tests.helpers.tiny import LENGTH

SOURCE = {"layers": 2, "vocabulary": 150}


def _config(family: str = "bart", source: dict[str, Any] | None = SOURCE, **sections: Any) -> RunConfig:
    tree = family_config(family).model_dump(mode="json")
    tree |= {"objective": {"name": "text_to_text"}, **sections}
    tree["model"]["source_encoder"] = source
    return RunConfig.model_validate(tree)


def test_it_adds_an_embedding_and_layers_like_the_encoders() -> None:
    with_it, without = _config().model, _config(source=None).model
    names = {spec.name: spec for spec in parameter_specs(with_it)}
    added = {name for name in names if name.startswith("source_encoder.")}
    assert names.keys() - added == {spec.name for spec in parameter_specs(without)}
    assert names["source_encoder.embedding.word_embeddings.weight"].shape == (256, 64), "150 rows in multiples of 128"
    layers = {name for name in added if ".layers." in name}
    assert {name.removeprefix("source_") for name in layers} == {name for name in names if name.startswith("encoder.")}
    of_layer = sum(spec.size for spec in parameter_specs(without) if spec.name.startswith("encoder.layers.0."))
    embedded = 256 * 64 + (32 + 2) * 64 + 2 * 64
    assert num_parameters(with_it) - num_parameters(without) == 2 * of_layer + embedded
    assert count_parameters(with_it) == num_parameters(with_it)


def test_the_first_stage_trains_it_and_what_lies_next_to_it() -> None:
    model = _config(finetune={"train": "source_encoder"}).model
    trained = {spec.name for spec in parameter_specs(model) if spec.trained}
    assert {name for name in trained if not name.startswith("source_encoder.")} == {
        "embedding.encoder.position_embeddings.weight",
        "embedding.decoder.position_embeddings.weight",
        "encoder.layers.0.self_attention.linear_qkv.weight",
    }
    assert all(spec.trained for spec in parameter_specs(model) if spec.name.startswith("source_encoder."))
    assert all(spec.trained for spec in parameter_specs(_config().model))


def test_its_layers_count_as_the_encoders() -> None:
    plain = _config(source=None)
    tree = plain.model_dump(mode="json")
    tree["model"]["encoder_layers"] = 4
    deeper = RunConfig.model_validate(tree).model
    assert training_flops_per_token(_config().model) == training_flops_per_token(deeper)


@pytest.mark.parametrize("vocabulary", [None, 300])
def test_its_vocabulary_is_known_before_parameters_are_counted(vocabulary: int | None) -> None:
    assert _config(source={"layers": 1, "vocabulary": vocabulary}).is_resolved == (vocabulary is not None)


def test_its_model_translates() -> None:
    tree = _config(run={"name": "r", "dir": "r"}).model_dump(mode="json")
    tree["model"]["target_length"] = LENGTH
    assert next_commands(RunConfig.model_validate(tree)) == ["pretrain translate r SOURCES.jsonl"]


def test_pipeline_stages_share_the_work_with_it_on_the_first() -> None:
    tree = _config().model_dump(mode="json")
    tree["model"] |= {"layers": 4, "encoder_layers": 4, "target_length": 32}
    deep = RunConfig.model_validate(tree).model
    without = deep.without_front_encoder()
    assert split_layers(deep, 2)[0] < split_layers(without, 2)[0]


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"family": "transformer"}, "model.source_encoder is for the bart family: leave it out for transformer"),
        ({"objective": {"name": "denoising"}}, "objective.name=denoising does not make: use text_to_text"),
        ({"finetune": {"train": "top", "layers": 1}}, "finetune.train=top trains the upper layers most"),
        ({"finetune": {"lora": {"rank": 4}}}, "finetune.lora trains the upper layers most"),
        ({"finetune": {"rate_decay": 0.9}}, "finetune.rate_decay trains the upper layers most"),
        ({"precision": "fp8"}, "model.source_encoder is for fp32, bf16 and fp16"),
        ({"source": None, "finetune": {"train": "source_encoder"}}, "which the model does not have"),
        ({"source": None, "data": {"path": "rows", "source_tokenizer": "file"}}, "data.source_tokenizer is for"),
        ({"evaluate": {"tasks": ["last_word"], "every_steps": 5}}, "evaluate.tasks"),
    ],
)
def test_what_it_does_not_go_with(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as error:
        _config(**sections)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"positions": {"name": "relative"}}, "positions of its own"),
        ({"shared_layers": True}, "layers share no parameters"),
        ({"tie_encoder_decoder": True}, "layers share no parameters"),
    ],
)
def test_models_that_it_does_not_fit(setting: dict[str, Any], sentence: str) -> None:
    tree = _config().model_dump(mode="json")
    tree["model"] |= setting
    with pytest.raises(ValidationError, match=sentence):
        RunConfig.model_validate(tree)


def test_scaling_laws_and_exports_say_that_they_do_not_know_it() -> None:
    with pytest.raises(ConfigError, match=r"model\.source_encoder: a scaling law is of models that grow as a whole"):
        check_one_model(_config())
    with pytest.raises(ConfigError, match="no class of transformers has: the checkpoint cannot be exported"):
        hf_family_of(_config().model)
