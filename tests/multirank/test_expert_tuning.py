"""Fine-tuning on ranks that share experts: with all experts frozen, with some, and with some that are trained later,
it is the same run as on one rank, and what is frozen keeps its bits."""

from typing import Any

import numpy as np
import pytest

from pretrain.config.run_config import RunConfig
from tests.helpers.breadth import slow
from tests.helpers.families import FAMILIES, train_family
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, tiny_config, whole_state

TOLERANCE = 1e-5
DEEPSPEED = {"zero": 2, "zero_engine": "deepspeed"}
SETTINGS: dict[str, dict[str, Any]] = {
    "lora": {"lora": {"rank": 4, "targets": ["qkv", "projection"]}},
    "adapters": {"adapters": {"size": 8}},
    "top": {"train": "top", "layers": 1},
    "unfrozen": {"unfreeze_steps": 1},
}
OPTIMIZERS = {
    "adamw": {"name": "adamw", "learning_rate": 1e-3, "eps": 1e-6},
    "lamb": {"name": "lamb", "learning_rate": 1e-2, "eps": 1e-6},
    "muon": {"name": "muon", "learning_rate": 1e-3, "adamw_eps": 1e-6},
}
LAYOUTS = [
    {"expert": 2},
    {"expert": 2, "zero": 0},
    {"expert": 4, **DEEPSPEED, "zero": 1},
    {"expert": 2, "tensor": 2, "sequence": True, **DEEPSPEED},
    {"expert": 4, "tensor": 2, "sequence": True, "expert_tensor": 1},
    {"expert": 2, "pipeline": 2},
]
EXPERTS = "model/decoder.layers.1.mlp.experts.linear_fc1.weight"


def _config(settings: str, optimizer: str, parallel: dict[str, Any]) -> RunConfig:
    model = FAMILIES["biased_experts"]["model"]
    return tiny_config(model=model, optimizer=OPTIMIZERS[optimizer], finetune=SETTINGS[settings], parallel=parallel)


def _runs(settings: str, optimizer: str, parallels: list[dict[str, Any]]) -> list[Any]:
    found = []
    for parallel in parallels:
        engine = build_engine(_config(settings, optimizer, parallel))
        first = whole_state(engine)
        found.append((train_family(engine, range(1, 5)), first, whole_state(engine)))
        meet_again()
    return found


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("settings", "optimizer", "layouts"),
    [
        ("lora", "muon", LAYOUTS[:1]),
        *(slow((settings, optimizer, LAYOUTS)) for settings in SETTINGS for optimizer in OPTIMIZERS),
    ],
)
def test_tuning_on_ranks_that_share_experts_is_the_same_run(
    settings: str, optimizer: str, layouts: list[dict[str, Any]]
) -> None:
    ((curve, first, last),) = run_ranks(1, _runs, settings, optimizer, [{}], timeout_s=200)[0]
    assert np.array_equal(first[EXPERTS], last[EXPERTS]) == (settings != "unfrozen")
    ranks = 2 if layouts == LAYOUTS[:1] else 4
    for found, other_first, other_last in run_ranks(ranks, _runs, settings, optimizer, layouts, timeout_s=900)[0]:
        assert np.abs(np.array(found) - np.array(curve)).max() <= TOLERANCE
        assert other_last.keys() == last.keys()
        for name in (name for name in last if name.startswith("model/")):
            assert np.abs(other_last[name] - last[name]).max() <= TOLERANCE, name
            if np.array_equal(first[name], last[name]):
                assert np.array_equal(other_last[name], other_first[name]), name
