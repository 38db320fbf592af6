"""Choices with settings of their own: how they may be written, in which order, and what a mistake says."""

from pathlib import Path

import pytest

from pretrain.config.attention import Banded, Dense
from pretrain.config.init import NormalInit
from pretrain.config.load import load
from pretrain.config.positions import LearnedPositions, RelativePositions, SinusoidalPositions
from pretrain.config.run_config import RunConfig
from pretrain.config.schedule import ConstantSchedule
from pretrain.errors import ConfigError

BASE = """
run: {dir: runs/a}
train: {steps: 10}
batch: {sequences: 8}
model: {family: t5, layers: 2, hidden: 64, heads: 4, sequence_length: 32, %s}
objective: {name: span_corruption}
optimizer: {learning_rate: 3e-4}
"""


def _load(folder: Path, model: str, *overrides: str) -> RunConfig:
    (folder / "run.yaml").write_text(BASE % model)
    return load(RunConfig, folder / "run.yaml", list(overrides))


def _message(folder: Path, model: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        _load(folder, model, *overrides)
    return str(error.value)


@pytest.mark.parametrize("written", ["positions: relative", "positions: {name: relative, num_buckets: 16}"])
def test_a_setting_is_added_to_a_choice(written: str, tmp_path: Path) -> None:
    override = "model.positions.num_buckets=8"
    assert _load(tmp_path, written, override).model.positions == RelativePositions(num_buckets=8)
    (tmp_path / "child.yaml").write_text(f"extends: run.yaml\n{_tree(override)}")
    assert load(RunConfig, tmp_path / "child.yaml").model.positions == RelativePositions(num_buckets=8)


def _tree(override: str) -> str:
    """A setting as a line of YAML."""
    dotted, value = override.split("=")
    for key in reversed(dotted.split(".")):
        value = f"{{{key}: {value}}}"
    return value[1:-1] + "\n"


def test_a_name_alone_takes_the_place_of_what_was_set(tmp_path: Path) -> None:
    config = _load(
        tmp_path, "positions: {name: relative, num_buckets: 16}", "model.positions=sinusoidal", "schedule=constant"
    )
    assert config.model.positions == SinusoidalPositions()
    assert config.schedule == ConstantSchedule()


def test_without_a_name_the_usual_is_meant(tmp_path: Path) -> None:
    config = _load(tmp_path, "positions: {offset: 3}, init: {std: 0.5}")
    assert (config.model.positions, config.model.init) == (LearnedPositions(offset=3), NormalInit(std=0.5))


def test_each_of_the_attention_patterns_may_have_settings(tmp_path: Path) -> None:
    written = "attention: {pattern: [dense, banded, {name: banded, window: 8}], window: 4}"
    attention = _load(tmp_path, written).model.attention
    assert [attention.layer_pattern(layer) for layer in range(4)] == [
        Dense(),
        Banded(window=4),
        Banded(window=8),
        Dense(),
    ]
    assert attention.kinds == (Dense(), Banded(window=4), Banded(window=8))
    assert attention.model_dump(mode="json")["pattern"] == ["dense", "banded", {"name": "banded", "window": 8}]
    assert _load(tmp_path, written, "model.attention.window=2").model.attention.layer_pattern(1) == Banded(window=2)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("optimizer.name=lamp", "expected one of adamw, adam, lamb, adafactor, adagrad, lion, muon: did you mean"),
        ("model.positions=relativ", "'model.positions.name' = 'relativ': expected one of learned"),
        ("schedule.name=5", "'schedule.name' = '5': expected one of cosine"),
        ("optimizer=adamw", "'optimizer.learning_rate' is required"),
        ("optimizer.learning_rate=fast", "'optimizer.learning_rate' = 'fast': expected a number"),
        ("optimizer.bta2=0.9", "unknown key 'optimizer.bta2': did you mean 'optimizer.beta2'?"),
        ("optimizer=[1]", "'optimizer' = [1]: expected a mapping"),
        ("schedule.zzz=1", "unknown key 'schedule.zzz': known here with schedule.name=cosine: name, warmup_tokens"),
        ("schedule={name: wsd, decay_steps: 4, warmup: none}", "schedule.warmup=none does nothing with"),
        ("optimizer.scale_parameter=false", "with optimizer.name=adamw: leave it out (it is for adafactor)"),
        ("optimizer={name: lamb, learning_rate: 1e-3, moments: bf16}", "leave it out (it is for adamw, adam)"),
        ("optimizer.moments=fp16", "'optimizer.moments' = 'fp16': expected"),
        ("model.positions={name: sinusoidal, offset: 2}", "offset=2 does nothing with model.positions.name=sinusoidal"),
        ("model.positions.num_buckets=64", "num_buckets=64 does nothing with model.positions.name=learned"),
        ("data={sources: [{path: a}, {path: b}], mixing: {name: equal, cap: 5}}", "data.mixing.cap=5 does nothing"),
        ("model.attention.pattern=[dense, bandet]", "'model.attention.pattern.1.name' = 'bandet': expected one of"),
        ("model.attention.pattern=[{name: dense, window: 3}]", "model.attention.pattern.0.window=3 does nothing with"),
        ("data={sources: [{path: a}, {path: b}], mixing: temperature}", "'data.mixing.temperature' is required"),
        ("data={sources: [{path: a}, {path: b}], mixing: {cap: 5}}", "'data.mixing.name' is required"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_choice_is_named(override: str, sentence: str, tmp_path: Path) -> None:
    assert sentence in _message(tmp_path, "init: t5", override)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["objective={name: classification, labels: [null, 2]}"],
            "'objective.labels.0' = null: expected text, true or false or an integer",
        ),
        (["objective={name: classification, labels: [a]}"], "'objective.labels' = ['a']: expected at least 2 items"),
        (["track.kind=3"], "'track.kind' = 3: expected text or a list"),
        (["evaluate.positive=[true]"], "'evaluate.positive' = [true]: expected text, true or false or an integer"),
        (
            ["optimizer={name: muon, learning_rate: 1, ns_coefficients: [1, 2]}"],
            "'optimizer.ns_coefficients' = [1, 2]: expected more than 2 items",
        ),
        (
            ["optimizer={name: muon, learning_rate: 1, ns_coefficients: [1, 2, 3, 4]}"],
            "'optimizer.ns_coefficients' = [1, 2, 3, 4]: expected at most 3 items",
        ),
        (
            ["objective={name: instructions, date: true}"],
            "'objective.date' = true: expected a date such as 2024-07-26",
        ),
        (["train.steps=1e30"], "'train.steps' = 1e+30: expected a smaller integer"),
        (["evaluate.figures=[[1]]"], "'evaluate.figures.0' = [1]: expected text"),
        ([f"model.heads={'9' * 5000}"], "not valid YAML (a number of thousands of digits)"),
        (["data.path=''"], "'data.path' = '': expected at least 1 character"),
        (["data.phases=[{tokens: 1, weights: {str: -1}}]"], "'data.phases.0.weights.str' = -1: must be greater than"),
    ],
)
def test_problems_are_said_in_the_words_of_the_config(overrides: list[str], said: str, tmp_path: Path) -> None:
    assert said in _message(tmp_path, "", *overrides)
