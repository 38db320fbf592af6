"""Config and plan of a predicted run."""

from dataclasses import replace
from pathlib import Path

import pytest

from pretrain.config.load import dump, load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.plan.device import find_device
from pretrain.scaling.law import Law
from pretrain.scaling.predict import predict
from pretrain.scaling.predicted_run import Cluster, plan_figures, predicted_run
from pretrain.scaling.report.text import plan_line
from pretrain.scaling.size import parameters_at_work


def base() -> RunConfig:
    return load(RunConfig, "gpt3/125m", ["model.vocabulary=50257"])


def test_the_run_has_the_predicted_size_length_and_rate(law: Law) -> None:
    prediction = replace(predict(law, parameters=1e9, tokens=1e10), learning_rate=1.23456e-3)
    config = predicted_run(base(), prediction, rule="olmo", gpus=64)
    assert parameters_at_work(config.model) == pytest.approx(1e9, rel=0.1)
    assert config.train.steps is not None
    tokens = config.train.steps * config.batch.sequences * config.model.sequence_length
    assert tokens / parameters_at_work(config.model) == pytest.approx(10, rel=0.01)
    assert (config.batch.sequences % 64, config.batch.micro_sequences) == (0, 1)
    assert config.optimizer.learning_rate == 1.235e-3


def test_a_base_without_a_vocabulary_has_no_size(law: Law) -> None:
    with pytest.raises(ConfigError, match=r"the config has none: set model\.vocabulary"):
        predicted_run(load(RunConfig, "debug/ladder"), predict(law, flops=1e20), rule="olmo", gpus=8)


def test_the_price_of_a_hardware_file_is_in_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text(dump(find_device("h100").model_copy(update={"price_per_hour": 2.5})))
    plan = plan_figures(base(), Cluster(gpus=8, hardware=str(file)))
    assert plan["cost"] == pytest.approx(2.5 * plan["gpu_hours"])
    assert f"GPU-hours, at 2.5 an hour {plan['cost']:,.0f}" in plan_line(plan)
    assert (plan["hardware"], plan["stack"]) == (str(file), "unknown")
