"""What a run of each shipped config names as next steps. They are run in tests/end_to_end/test_next_steps.py."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pretrain.checkpoint.hf.heads import with_head
from pretrain.checkpoint.hf.registry import hf_family_of
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.config.shipped import shipped
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.observe.ending import finished, next_commands
from pretrain.observe.memory import Peak
from pretrain.plan.memory_check import planned_bytes
from tests.helpers.families import family_config
from tests.helpers.tiny import LENGTH, tiny_config

RUNS = [name for name in shipped() if not name.startswith(("data/", "cluster/", "finetune/"))]
SPECIALS: Any = SimpleNamespace(end=0, pad=1, cls=2, sep=3, mask=4, start=1, vocabulary=9000)


@pytest.mark.parametrize("name", RUNS)
def test_an_export_is_named_where_hugging_face_has_a_class(name: str) -> None:
    config = load(RunConfig, name, ["model.vocabulary=300000", "run.dir=r"])
    try:
        family = hf_family_of(config.model)
    except ConfigError:
        assert config.model.family in ("monarch_mixer", "rnn")
        assert not any(command.startswith("pretrain export") for command in next_commands(config))
        return
    try:
        described = family if config.model.task_head is None else with_head(family, config.objective)
        described.hf_config(config.model, SPECIALS)
        end = f"exported/{Path('r').resolve().name}"
    except ConfigError:
        end = None if family.encoder is None else "--encoder"
    named = [command for command in next_commands(config) if command.startswith("pretrain export r ")]
    assert [command.split()[-1] for command in named] == ([] if end is None else [end])


@pytest.mark.parametrize("objective", ["classification", "tagging", "spans"])
def test_an_export_of_a_task_head_is_named_where_hugging_face_has_a_class_with_it(objective: str) -> None:
    section = {"name": objective} | ({} if objective == "spans" else {"labels": ["a", "b"]})
    for name, exports in (("bert", True), ("bigbird", objective == "tagging"), ("t5", objective != "tagging")):
        _same_as_exports(name, section, exports)
    for name in ("gpt", "llama", "gemma", "gemma2", "ctrl", "bloom", "bart", "transformer", "tlm"):
        _same_as_exports(name, section, None)


def test_no_export_is_named_of_a_run_with_adapters() -> None:
    tree = family_config("bert", run={"dir": "r"}).model_dump(mode="json") | {"finetune": {"adapters": {}}}
    config = RunConfig.model_validate(tree)
    with pytest.raises(ConfigError, match="layers that no class of transformers has"):
        hf_family_of(config.model)
    assert not any(command.startswith("pretrain export r ") for command in next_commands(config))


def _same_as_exports(name: str, objective: dict[str, Any], expected: bool | None) -> None:
    small: dict[str, Any] = {"model": {"vocabulary": 390}, "run": {"dir": "r"}}
    config = tiny_config(**small) if name == "gpt" else family_config(name, **small)
    tree = config.model_dump(mode="json") | {"objective": objective}
    tree["model"]["target_length"] = tree["model"]["target_length"] and LENGTH
    config = RunConfig.model_validate(tree)
    try:
        with_head(hf_family_of(config.model), config.objective)
        exported = True
    except ConfigError:
        exported = False
    assert expected in (None, exported)
    assert any(command.startswith("pretrain export r ") for command in next_commands(config)) == exported, name


def test_what_is_next_for_a_fine_tuned_run_are_commands_that_it_answers() -> None:
    tuned = {"name": "classification", "labels": ["a", "b"]}
    for name, objective, commands in (
        ("llama", tuned, ["eval r --tasks heldout", "export r"]),
        ("llama", {"name": "instructions"}, ["eval r --tasks arithmetic_2da", "generate r", "export r"]),
        ("t5", {"name": "text_to_text"}, ["generate r", "export r"]),
    ):
        tree = family_config(name, run={"dir": "r"}).model_dump(mode="json") | {"objective": objective}
        tree["model"]["target_length"] = tree["model"]["target_length"] and LENGTH
        found = next_commands(RunConfig.model_validate(tree))
        assert len(found) == len(commands)
        for command, beginning in zip(found, commands, strict=True):
            assert command.startswith(f"pretrain {beginning}")


def test_a_model_with_a_source_encoder_translates() -> None:
    tree = family_config("bart", run={"dir": "r"}).model_dump(mode="json") | {"objective": {"name": "text_to_text"}}
    tree["model"] |= {"target_length": LENGTH, "source_encoder": {"layers": 1, "vocabulary": 99}}
    assert next_commands(RunConfig.model_validate(tree)) == ["pretrain translate r SOURCES.jsonl"]


def test_text_is_offered_of_models_that_make_text() -> None:
    def asks(name: str) -> bool:
        config = load(RunConfig, name, ["model.vocabulary=9000", "run.dir=r"])
        return "pretrain generate r --prompt The" in next_commands(config)

    assert asks("debug/gpt")
    assert asks("debug/t5")
    assert not asks("debug/bert")


def test_an_end_on_gpus_says_how_far_the_planned_memory_is_from_what_was_held() -> None:
    config = load(RunConfig, "gpt3/125m", ["run.dir=r"])
    layout = plan_layout(config, 8)
    planned = planned_bytes(config, layout)
    peak = Peak(device=round(planned / 0.8), host=2 * 10**9)
    summary = finished(config, layout, 10, 1000, heldout=None, peak=peak).splitlines()[0]
    assert summary.endswith(" a rank, planned 8.02 GB, 0.80 of what the GPU held")
    on_host = finished(config, layout, 10, 1000, heldout=None, peak=Peak(device=None, host=2 * 10**9))
    assert "planned" not in on_host
