"""`pretrain verify` of Monarch Mixer: one run on every kind of layout, in fp32 and bf16."""

from pathlib import Path

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from tests.helpers.families import family_config
from tests.helpers.planted import check_sound, table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("config", ["tests", "debug"])
def test_convolutions_in_place_of_attention_are_the_same_run(config: str, tmp_path: Path) -> None:
    layouts = ["tp2pp2", "pp2+vp2", "tp2dp2+zero1", "dp2+zero2", "pp2dp2+zero3"]
    made = family_config("monarch_mixer", precision="bf16")
    if config == "debug":
        made = load(RunConfig, "debug/monarch-mixer", ["precision=bf16"])
    check_sound(table(made, tmp_path, layouts))
