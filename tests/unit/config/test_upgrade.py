"""Configs that version 0.1.0 wrote of each family (old/, as its `dump` did) mean today what they meant then."""

from pathlib import Path
from typing import Any

import pytest

from pretrain.checkpoint.state import Record, check_same_run
from pretrain.config.load import dump, load, read, validate
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError

OLD = Path(__file__).parent / "old"
DEBUG = Path(__file__).parents[3] / "configs" / "debug"

MIXED = "data={{sources: [{{path: a}}, {{path: b}}], mixing: {}}}".format
BEGUN_WITH = {
    "gpt": ["schedule={name: wsd, decay_steps: 20}", "optimizer.name=lamb"],
    "bert": ["schedule={name: constant, warmup_steps: 60}", "precision=fp16"],
    "roberta": ["optimizer={name: adam, learning_rate: 1e-3}"],
    "t5": [
        "optimizer={name: adafactor, learning_rate: 1e-2}",
        "schedule={name: inverse_sqrt, warmup_steps: 10, warmup: none}",
        MIXED("{name: temperature, temperature: 2}"),
    ],
    "transformer": ["model.scale_residual_init=false", MIXED("{name: equal}")],
    "bart": [MIXED("{name: proportional, cap: 500}")],
}


def _record(family: str, **sections: Any) -> Record:
    return Record(10, 10, 10_000, {}, read(OLD / f"{family}.yaml") | sections, "", {})


@pytest.mark.parametrize("family", BEGUN_WITH)
def test_an_old_config_is_read_as_what_it_was_written_from(family: str) -> None:
    today = load(RunConfig, DEBUG / f"{family}.yaml", ["model.vocabulary=1000", *BEGUN_WITH[family]])
    assert load(RunConfig, OLD / f"{family}.yaml") == today


@pytest.mark.parametrize("family", BEGUN_WITH)
def test_what_is_written_of_it_today_is_read_back(family: str, tmp_path: Path) -> None:
    old = load(RunConfig, OLD / f"{family}.yaml")
    (tmp_path / "config.yaml").write_text(dump(old))
    assert load(RunConfig, tmp_path / "config.yaml") == old


@pytest.mark.parametrize("family", BEGUN_WITH)
def test_its_run_goes_on(family: str) -> None:
    check_same_run(_record(family), load(RunConfig, OLD / f"{family}.yaml"))


def test_its_run_does_not_go_on_with_other_settings() -> None:
    with pytest.raises(ConfigError, match=r"optimizer.relative=True, and the config now says False"):
        check_same_run(_record("t5"), load(RunConfig, OLD / "t5.yaml", ["optimizer.relative=false"]))


def test_a_window_that_no_layer_had_is_left_out_of_it() -> None:
    tree = read(OLD / "gpt.yaml")
    for pattern, window in ((["dense"], 256), (["dense", "banded"], 64)):
        tree["model"]["attention"] = {"pattern": pattern, "window": 64}
        assert validate(RunConfig, tree, "it").model.attention.window == window


def test_a_setting_that_does_nothing_is_refused_on_top_of_it() -> None:
    with pytest.raises(ConfigError, match=r"optimizer.eps=0.1 does nothing with optimizer.name=adafactor"):
        load(RunConfig, OLD / "t5.yaml", ["optimizer.eps=0.1"])


def test_a_config_that_cannot_be_read_today_says_how_to_go_on() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'health.pulse'.* begin a new run with its weights"):
        check_same_run(_record("gpt", health={"pulse": 60}), load(RunConfig, OLD / "gpt.yaml"))
