"""The keys of a config, as they are listed: all of them, each with what it means."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_pipeline.build.config import BuildConfig
from data_pipeline.steps.base import Step
from data_pipeline.steps.registry import STEPS
from pretrain.config.aliases import ALIASES, called
from pretrain.config.keys import Key, keys
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.config.shipped import shipped
from tests.helpers.shipped import NO_RUNS

CONFIGS = Path(__file__).parents[3] / "configs"
RUN = keys(RunConfig)
BUILD = keys(BuildConfig, {Step: STEPS})


def of(dotted: str, only: str | None = None) -> Key:
    (found,) = [key for key in RUN if key.dotted == dotted and (only is None or only in key.only)]
    return found


def test_a_key_has_its_type_bounds_default_and_meaning() -> None:
    assert of("run.seed") == Key(
        dotted="run.seed",
        type="whole number at least 0",
        required=False,
        default=1234,
        choices=(),
        only=(),
        description="seed of weights, sample order and dropout",
    )
    assert of("run.dir").type == "path"
    assert of("run.dir").required
    assert (of("precision").choices, of("precision").default) == (("fp32", "bf16", "fp16", "fp8"), "fp32")
    assert of("model.dropout").type == "number at least 0 below 1"


def test_a_choice_has_its_names_and_the_settings_of_each() -> None:
    assert of("optimizer.name").choices == ("adamw", "adam", "lamb", "adafactor", "adagrad", "lion", "muon")
    assert (of("optimizer.name").default, of("optimizer.name").required) == ("adamw", False)
    assert of("optimizer.learning_rate").only == ()
    assert of("optimizer.scale_parameter").only == ("adafactor",)
    assert of("optimizer.beta1", "lamb").default == 0.9
    assert of("optimizer.beta1", "adafactor").default == 0.0
    assert of("data.mixing.name").required
    assert of("model.attention.pattern[].window", "banded").default is None
    assert of("model.attention.pattern[].window", "bigbird").default == 3
    nested = of("model.attention.pattern[].of[].dilation")
    assert (nested.only, nested.of) == (("dilated",), "model.attention.pattern[].of[].name")


def test_a_setting_names_the_choice_whose_names_it_is_of() -> None:
    chosen = {key.dotted: key.choices for key in RUN + BUILD if key.dotted.endswith(".name")}
    for key in RUN + BUILD:
        assert set(key.only) <= set(chosen[key.of] if key.of else ()), key


def test_every_alias_leads_to_keys_and_no_name_to_two_rows() -> None:
    there = {key.dotted for key in RUN}
    assert [key for keys in ALIASES.values() for key in keys if key not in there] == []
    names = [name for names in ALIASES for name in names.split()]
    assert sorted(names) == sorted(set(names))
    assert all(called(name) for name in names)


def test_every_key_says_what_it_means() -> None:
    assert [key.dotted for key in RUN + BUILD if not key.description] == []


def test_every_key_of_every_shipped_config_is_listed() -> None:
    listed = {key.dotted.replace("[]", "") for key in RUN}
    for name in shipped():
        if name.partition("/")[0] in NO_RUNS:
            continue
        config = load(RunConfig, name, ["model.vocabulary=300000", "run.dir=r"])
        assert set(_leaves(config.model_dump(mode="json"), "", listed)) <= listed


def _leaves(value: Any, dotted: str, listed: set[str]) -> Iterator[str]:
    """What is in a key that is `listed` goes by names of the user's own."""
    if isinstance(value, dict) and dotted not in listed:
        for name, inner in value.items():
            yield from _leaves(inner, f"{dotted}.{name}".lstrip("."), listed)
    elif isinstance(value, list):
        yield dotted
        for one in value:
            yield from _leaves(one, dotted, listed)
    else:
        yield dotted


def test_a_build_s_keys_are_those_of_its_steps_too() -> None:
    names = {key.dotted: key for key in BUILD}
    assert names["steps[].name"].choices == tuple(STEPS)
    assert "steps[].remove[].from" in names
    assert names["input"].type == "path or list of path"


def test_comments_of_shipped_configs_name_keys_that_there_are() -> None:
    listed = {key.dotted.replace("[]", "") for key in RUN + BUILD}
    wrong = []
    for path in sorted(CONFIGS.rglob("*.yaml")):
        comments = re.findall(r"#.*", path.read_text(encoding="utf-8"))
        named = [key for comment in comments for key in re.findall(r"\b([a-z_]+(?:\.[a-z_]+)+)=", comment)]
        wrong += [f"{path.name}: {key}" for key in named if key not in listed]
    assert wrong == []
