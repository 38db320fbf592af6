"""Values that no person can have meant are refused in every section alike."""

from typing import Any

import pytest

from pretrain.errors import ConfigError
from tests.helpers.small_configs import config


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": {"norm_eps": "inf"}}, "'model.norm_eps' = 'inf': expected a finite number"),
        ({"model": {"norm_eps": float("nan")}}, "model.norm_eps"),
        ({"optimizer": {"learning_rate": float("inf")}}, "optimizer.learning_rate"),
        ({"objective": {"label_smoothing": float("nan")}}, "objective.label_smoothing"),
        ({"model": {"hidden": True}}, "'model.hidden' = true: expected a number, not true or false"),
        ({"model": {"init": {"std": True}}}, "'model.init.std' = true"),
        ({"data": {"sources": [{"path": "x", "weight": True}]}}, "'data.sources.0.weight' = true"),
        ({"parallel": {"zero": True}}, "'parallel.zero' = true: expected a number"),
        ({"checkpoint": {"in_flight": 1e12}}, "'checkpoint.in_flight'"),
        ({"health": {"timeout_s": 1e12}}, "'health.timeout_s'"),
        ({"model": {"norm_eps": 1e30}}, "'model.norm_eps' = 1e+30: must be less than 1"),
        ({"optimizer": {"learning_rate": 1e30}}, "'optimizer.learning_rate' = 1e+30"),
        ({"run": {"dir": ""}}, "'run.dir' = ''"),
        ({"data": {"path": ""}}, "'data.path' = ''"),
        ({"model": {"init": {"std": 1e-30}}}, "'model.init.std' = 1e-30"),
        ({"optimizer": {"learning_rate": 1e-300}}, "'optimizer.learning_rate' = 1e-300"),
        ({"optimizer": {"clip_norm": 1e-38}}, "optimizer.clip_norm=1e-38 leaves nothing of any gradient"),
        ({"optimizer": {"weight_decay": 1e9}}, "optimizer.weight_decay=1e+09 with optimizer.learning_rate=1 takes"),
        ({"precision": "fp16", "loss_scale": {"initial": 1e300}}, "'loss_scale.initial' = 1e+300"),
        ({"precision": "fp16", "loss_scale": {"initial": 1e-30}}, "'loss_scale.initial' = 1e-30"),
        ({"precision": "fp16", "loss_scale": {"initial": 0.5}}, "loss_scale.initial=0.5 is below loss_scale.minimum=1"),
        ({"health": {"hang_s": 1e-9}}, "health.hang_s=1e-09 would end every run as hanging"),
        ({"track": {"uri": "garbage"}}, "track.uri='garbage' is no address of MLflow"),
        ({"track": {"uri": "sqlite:////a?b/x.db"}}, "write a ? of a path as %3F, and a % as %25"),
        ({"data": {"workers": 500}}, "'data.workers' = 500: must be less than or equal to 64"),
        ({"data": {"prefetch": 1e12}}, "'data.prefetch' = 1000000000000.0: must be less than or equal to 256"),
        ({"train": {"steps": 2**60}}, "'train.steps' = 1152921504606846976: must be at most"),
        ({"run": {"dir": "x\0y"}}, "'run.dir'"),
        ({"run": {"dir": "x" * 5000}}, "'run.dir' = 'xxx"),
        ({"model": {"attention": {"window": 64}}}, "model.attention.window=64 does nothing"),
        (
            {"batch": {"sequences": 10**6, "ramp": {"start_sequences": 1, "increment_sequences": 1, "tokens": 9}}},
            "ramp",
        ),
    ],
)
def test_nonsense_is_named_with_its_key(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(**sections)
    assert words in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:///x.db",
        "sqlite:////a%3Fb/x.db",
        "sqlite:///x.db?timeout=9",
        "postgresql+psycopg2://u@h/d",
        "http://h:5000",
        "file:/x",
        "databricks",
        "./mlruns",
        "/a",
    ],
)
def test_an_address_that_mlflow_reads_is_taken(uri: str) -> None:
    assert config(track={"uri": uri}).track.uri == uri


def test_no_clipping_no_watch_and_no_decay_stay() -> None:
    plain = config(optimizer={"clip_norm": 0, "weight_decay": 0}, health={"hang_s": 0})
    assert (plain.optimizer.clip_norm, plain.health.hang_s) == (0, 0)


def test_true_and_false_stay_where_they_are_asked_for() -> None:
    assert config(model={"tie_word_embeddings": False}).model.tie_word_embeddings is False


@pytest.mark.parametrize(
    "attention",
    [{"window": 64, "pattern": ["dense", "banded"]}, {"window": 256}, {"pattern": [{"name": "banded", "window": 3}]}],
)
def test_a_window_that_some_layer_has_is_taken(attention: dict[str, Any]) -> None:
    config(model={"attention": attention})
