"""Keys with nonsense of every kind: one sentence, or a config that could be meant. Whole commands are tried in
tests/end_to_end/test_nonsense.py."""

import random
from pathlib import Path

import pytest

from pretrain.config.load import read, validate
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.plan.memory_check import check_memory
from pretrain.run_length.segments import run_length
from tests.helpers.nonsense import VALUES, keys_of

CONFIG = Path(__file__).parents[3] / "configs" / "gpt2" / "124m.yaml"
_LARGEST_MODEL_BYTES = 64 * 2**30


def refusal(tree: dict[str, object], overrides: list[str]) -> str | None:
    """What is said of a config with `overrides`; None if it is good."""
    try:
        config = validate(RunConfig, tree, "config", overrides)
        layout = plan_layout(config, min(64, config.parallel.model_ranks))
        check_memory(config, layout, _LARGEST_MODEL_BYTES)
        run_length(config)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("seed", range(2))
def test_no_value_of_a_key_is_more_than_a_sentence(seed: int) -> None:
    chance, keys, tree = random.Random(seed), sorted(keys_of(RunConfig)), read(CONFIG)
    refused = 0
    for _ in range(250):
        wrong = [f"{chance.choice(keys)}={chance.choice(VALUES)}" for _ in range(chance.randint(1, 2))]
        said = refusal(tree, wrong)
        if said is not None:
            refused += 1
            assert len(said) < 1000, wrong
            assert "\n" not in said, wrong
    assert refused > 200, "these are nonsense"
