"""What a run of each shipped config names as next steps. They are run in tests/end_to_end/test_next_steps.py."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.config.shipped import shipped
from pretrain.errors import ConfigError
from pretrain.interop.hf.heads import with_head
from pretrain.interop.hf.registry import BY_MODEL_TYPE, FAMILIES_APART, hf_family_of
from pretrain.layout.layout import plan_layout
from pretrain.model_spec import hf_classes
from pretrain.observe.ending import finished, next_commands
from pretrain.observe.memory import Peak
from pretrain.plan.memory_check import planned_bytes
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.shipped import NO_RUNS
from tests.helpers.tiny import LENGTH, tiny_config

RUNS = [name for name in shipped() if name.partition("/")[0] not in NO_RUNS]
SPECIALS: Any = SimpleNamespace(end=0, pad=1, cls=2, sep=3, mask=4, start=1, vocabulary=9000)


@pytest.mark.parametrize("name", RUNS)
def test_an_export_is_named_where_hugging_face_has_a_class(name: str) -> None:
    config = load(RunConfig, name, ["model.vocabulary=300000", "run.dir=r"])
    try:
        family = hf_family_of(config.model)
    except ConfigError:
        assert config.model.capabilities.without_hf_class is not None
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


HEADS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "sequence": {"name": "classification", "labels": ["a", "b"]},
    "number": {"name": "regression"},
    "tokens": {"name": "tagging", "labels": ["a", "b"]},
    "spans": {"name": "spans"},
    "span": {"name": "spans", "conditional_end": True},
    "choice": {"name": "choice", "max_choices": 4, "sequence_length": 16},
}


@pytest.mark.parametrize("head", HEADS)
def test_the_end_of_a_run_names_an_export_where_one_is_made(head: str) -> None:
    """Every family, with each head that it can be fine-tuned with."""
    counts = {True: 0, False: 0}
    for name in ("gpt", *FAMILIES):
        if (config := _config_with(name, HEADS[head])) is not None:
            exported = _exported(config)
            counts[exported is not None] += 1
            named = [c for c in next_commands(config) if c.startswith("pretrain export r") and "--encoder" not in c]
            assert bool(named) == (exported is not None), (name, exported)
            if exported is not None and config.model.task_head is not None:
                assert _head_class(config) == exported
    assert all(counts.values()), counts


@pytest.mark.parametrize(("multiplier", "is_exported"), [(2.0, False), (1.0, True)])
def test_no_export_is_named_where_no_weight_takes_a_multiplier_up(multiplier: float, is_exported: bool) -> None:
    """Sinusoidal positions are no weights."""
    mup = {"base_width": 16, "input_multiplier": multiplier}
    config = family_config("transformer", model={"vocabulary": 390, "mup": mup}, run={"dir": "r"})
    assert any(command.startswith("pretrain export") for command in next_commands(config)) == is_exported


def _config_with(name: str, objective: dict[str, Any] | None) -> RunConfig | None:
    small: dict[str, Any] = {"model": {"vocabulary": 390}, "run": {"dir": "r"}}
    config = tiny_config(**small) if name == "gpt" else family_config(name, **small)
    if objective is None:
        return config
    tree = config.model_dump(mode="json") | {"objective": objective, "generator": None}
    tree["model"]["target_length"] = tree["model"]["target_length"] and LENGTH
    try:
        return RunConfig.model_validate(tree)
    except ValueError:  # no family has all heads
        return None


def _exported(config: RunConfig) -> str | None:
    """The class that an export of the model is read by; None: it is refused."""
    try:
        family = hf_family_of(config.model)
        family = family if config.model.task_head is None else with_head(family, config.objective)
        family.hf_config(config.model, SPECIALS)
    except ConfigError:
        return None
    return str(family.class_of(config.model).__name__)


def _head_class(config: RunConfig) -> str:
    return hf_classes.head_class(hf_classes.class_of(config.model), config.objective)


def test_classes_with_heads_are_those_that_models_are_converted_to() -> None:
    every = BY_MODEL_TYPE | {family.model_type: family for family in FAMILIES_APART.values()}
    found = {
        model_type: {kind: head.model_class.__name__ for kind, head in family.heads.items()}
        for model_type, family in every.items()
        if family.heads
    }
    assert found == {name: dict(one.heads) for name, one in hf_classes.by_model_type().items() if one.heads}


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_a_fine_tuned_mixture_is_exported(name: str) -> None:
    config = _config_with(name, HEADS["sequence"])
    assert config is not None
    assert any(command.startswith("pretrain export r ") for command in next_commands(config))


def test_no_export_is_named_of_a_run_with_adapters() -> None:
    tree = family_config("bert", run={"dir": "r"}).model_dump(mode="json") | {"finetune": {"adapters": {}}}
    config = RunConfig.model_validate(tree)
    with pytest.raises(ConfigError, match="layers that no class of transformers has"):
        hf_family_of(config.model)
    assert not any(command.startswith("pretrain export r ") for command in next_commands(config))


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
    assert planned is not None
    peak = Peak(device=round(planned / 0.8), host=2 * 10**9)
    summary = finished(config, layout, 10, 1000, heldout=None, peak=peak).splitlines()[0]
    assert summary.endswith(" a rank, planned 8.02 GB, 0.80 of what the GPU held")
    on_host = finished(config, layout, 10, 1000, heldout=None, peak=Peak(device=None, host=2 * 10**9))
    assert "planned" not in on_host
    unplanned = load(RunConfig, "debug/xlnet", ["run.dir=r"])
    assert "planned" not in finished(unplanned, layout, 10, 1000, heldout=None, peak=peak)
