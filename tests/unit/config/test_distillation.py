"""`distillation`: what a teacher has to be, and what of it makes another run."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pretrain.checkpoint.state import differences
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import with_teacher
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.start_layers import teacher_names
from pretrain.plan.memory_bound import least_bytes
from pretrain.plan.planner import check_one_model
from tests.helpers.families import family_config
from tests.helpers.tiny import tiny_config


def _with_teacher(config: RunConfig, model: dict[str, Any] | None = None, **settings: Any) -> RunConfig:
    recorded = config.model.model_dump(mode="json") | {"layers": 8} | (model or {})
    distillation = {"teacher": "runs/teacher", "teacher_model": recorded, "teacher_digest": "abc"} | settings
    return RunConfig.model_validate(config.model_dump(mode="json") | {"distillation": distillation})


@pytest.mark.parametrize(
    ("model", "settings", "sentence"),
    [
        ({"hidden": 128}, {"cosine_weight": 1.0}, "has hidden 128, and this model 64"),
        ({"vocabulary": 251}, {}, "has vocabulary 251, and this model 250"),
        ({"sequence_length": 16}, {}, "reads 16 positions, fewer than"),
        ({"attention": {}}, {}, "with the same model.attention"),
        ({}, {"kl_weight": 0.0}, "are 0, so that nothing is learned"),
    ],
)
def test_a_teacher_that_does_not_suit_the_model_is_refused(
    model: dict[str, Any], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        _with_teacher(tiny_config(), model, **settings)


def test_a_teacher_may_be_wider_if_only_predictions_are_compared() -> None:
    config = _with_teacher(tiny_config(), {"hidden": 128})
    assert config.teacher_config().model.hidden == 128
    assert config.teacher_config().distillation.teacher is None


def test_losses_of_more_than_tokens_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"the loss of objective\.name=masked is next_sentence"):
        _with_teacher(family_config("bert"))
    with pytest.raises(ValidationError, match="leave it out for an encoder-decoder"):
        _with_teacher(family_config("t5"))
    with pytest.raises(ValidationError, match=r"objective\.name=permuted predict at places beside them"):
        _with_teacher(family_config("xlnet"))


def test_weights_without_a_teacher_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"distillation\.kl_weight does nothing without distillation\.teacher"):
        tiny_config(distillation={"kl_weight": 2.0})


def _comparing(
    model: dict[str, Any] | None = None, sections: dict[str, Any] | None = None, **settings: Any
) -> RunConfig:
    """A BERT of four layers whose layers are compared with those of a teacher of eight."""
    config = family_config("bert", model={"binary_head": False}, objective={"next_sentence": False}, **(sections or {}))
    return _with_teacher(config, model, **{"hidden_weight": 1.0, "attention_weight": 1.0, "kl_weight": 0.0} | settings)


def test_layers_are_compared_with_every_nth_of_the_teacher_or_those_that_are_named() -> None:
    config = _comparing({"hidden": 128})
    assert config.distillation.matched_layers(4) == (1, 3, 5, 7)
    assert config.model.teacher_hidden == 128
    named = {spec.name: spec.shape for spec in parameter_specs(config.model)}
    assert named["teacher_projection.weight"] == (128, 64)
    assert _comparing(match_layers=[0, 1, 2, 7]).distillation.matched_layers(4) == (0, 1, 2, 7)
    assert _comparing(hidden_weight=0.0).model.teacher_hidden is None
    assert _with_teacher(tiny_config()).distillation.matched_layers(4) == ()


@pytest.mark.parametrize(
    ("model", "sections", "settings", "sentence"),
    [
        ({"layers": 6}, {}, {}, "has 6 layers, no multiple of model.layers=4: set distillation.match_layers"),
        ({}, {}, {"match_layers": [1, 3, 5]}, "is not one layer of the teacher for each of model.layers=4"),
        ({}, {}, {"match_layers": [1, 3, 7, 5]}, "in order: name one for each"),
        ({}, {}, {"match_layers": [1, 3, 5, 8]}, "names layer 8, and the model of distillation.teacher has 8"),
        ({"heads": 8}, {}, {}, "has 8 heads, and this model 4"),
        ({}, {"parallel": {"pipeline": 2}}, {}, "set parallel.pipeline=1 in place of 2"),
        ({}, {"parallel": {"context": 2}}, {}, "set parallel.context=1 in place of 2"),
        ({}, {"parallel": {"recompute": "full"}}, {}, "set parallel.recompute=none in place of full"),
        ({}, {}, {"hidden_weight": 0.0, "attention_weight": 0.0}, "are 0, so that nothing is learned"),
        (
            {},
            {},
            {"hidden_weight": 0.0, "attention_weight": 0.0, "kl_weight": 1.0, "match_layers": [1, 3, 5, 7]},
            "distillation.match_layers does nothing without",
        ),
    ],
)
def test_layers_that_cannot_be_compared_are_refused(
    model: dict[str, Any], sections: dict[str, Any], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        _comparing(model, sections, **settings)


def test_a_task_is_learned_from_a_teacher_of_the_same_head() -> None:
    tree = family_config("bert").model_dump(mode="json") | {
        "objective": {"name": "classification", "labels": ["a", "b"]}
    }
    tree["model"]["binary_head"] = False
    config = RunConfig.model_validate(tree)
    assert config.model.task_head is not None
    assert _with_teacher(config).teacher_config().model.task_head == config.model.task_head
    for model, settings, sentence in (
        ({"task_head": None}, {}, "has task_head None, and this model"),
        ({"task_head": {"kind": "sequence", "outputs": 3}}, {}, "has task_head"),
        ({}, {"cosine_weight": 1.0}, "distillation.cosine_weight is for losses of tokens"),
    ):
        with pytest.raises(ValidationError, match=re.escape(sentence)):
            _with_teacher(config, model, **settings)
    with pytest.raises(ValidationError, match=r"objective\.name=regression is regression"):
        _with_teacher(RunConfig.model_validate(tree | {"objective": {"name": "regression"}}))


def test_layers_of_decoders_are_not_compared() -> None:
    with pytest.raises(ValidationError, match="are for encoders"):
        _with_teacher(tiny_config(), hidden_weight=1.0)


@pytest.mark.parametrize(
    ("layers", "sections", "sentence"),
    [
        ([0, 1, 2], {}, "names 3 layers, and model.layers=4: name one for each"),
        ([0, 0, 1, 2], {}, "names 3 layers, and model.layers=4"),
        ([0, 1, 2, 3], {"run": {"start_from": "elsewhere"}}, "both say what weights begin as"),
    ],
)
def test_layers_to_begin_with_are_one_for_each(layers: list[int], sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        tiny_config(model={"layers": 4}, distillation={"teacher": "t", "start_layers": layers}, **sections)


def test_a_model_begins_with_parameters_of_its_teacher_that_have_their_shapes() -> None:
    for norm in ("post", "pre"):
        student = tiny_config(model={"layers": 2, "norm": norm}).model
        teacher = student.model_copy(update={"layers": 4})
        names = teacher_names(student, teacher, (1, 2))
        layer = {own: name for own, name in names.items() if ".layers." in own}
        assert all(own.replace(".0.", ".1.") == name for own, name in layer.items() if ".layers.0." in own)
        assert all(
            own.replace(".layers.1.", ".layers.2.") == name for own, name in layer.items() if ".layers.1." in own
        )
        assert all(own == name for own, name in names.items() if own not in layer)
        with pytest.raises(ConfigError, match=r"which has no decoder\.layers\.4"):
            teacher_names(student, teacher, (1, 4))
        with pytest.raises(ConfigError, match="give the model the teacher's sizes"):
            teacher_names(student, teacher.model_copy(update={"hidden": 2 * student.hidden}), (1, 2))


def test_the_layout_must_divide_the_teacher_too() -> None:
    plan_layout(_with_teacher(tiny_config(parallel={"pipeline": 2})), 2)
    with pytest.raises(ConfigError, match=r"on the layout of the model, and model\.layers=3"):
        plan_layout(_with_teacher(tiny_config(parallel={"pipeline": 2}), {"layers": 3}), 2)


def test_another_teacher_is_another_run_and_another_path_is_not() -> None:
    config = _with_teacher(tiny_config())
    then, now = (config.model_dump(mode="json") for _ in range(2))
    now["distillation"]["teacher"] = "elsewhere"
    assert differences(then, now) == []
    now["distillation"]["teacher_digest"] = "def"
    assert differences(then, now) == [("distillation.teacher_digest", "abc", "def")]


def test_the_memory_of_a_teacher_counts_and_scaling_laws_refuse_it() -> None:
    alone, config = tiny_config(), _with_teacher(tiny_config())
    layout = plan_layout(config, 1)
    assert least_bytes(alone, layout)["teacher"] == 0
    assert least_bytes(config, layout)["teacher"] > least_bytes(alone, layout)["weights"]
    with pytest.raises(ConfigError, match="this run computes two"):
        check_one_model(config)


def test_a_teacher_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    config = tiny_config(distillation={"teacher": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"distillation\.teacher=.* is neither a checkpoint nor a run"):
        with_teacher(config)
