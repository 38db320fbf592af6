"""Weights of one kind of model in front of a run of another: one sentence, before data is read."""

import json
from itertools import permutations
from pathlib import Path

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.start_model import check_start
from pretrain.errors import ConfigError


def test_weights_of_another_kind_of_model_are_refused_in_one_sentence(tmp_path: Path) -> None:
    configs = {name: load(RunConfig, f"debug/{name}", ["model.vocabulary=512"]) for name in ("gpt", "t5", "bert")}
    for before, name in permutations(configs, 2):
        recorded = {"config": configs[before].model_dump(mode="json")}
        (tmp_path / "record.json").write_text(json.dumps(recorded))
        run = configs[name].run.model_copy(update={"start_from": str(tmp_path)})
        with pytest.raises(
            ConfigError, match=rf"model\.family={name}, .* does not fit the weights of run\.start_from="
        ):
            check_start(configs[name].model_copy(update={"run": run}))
