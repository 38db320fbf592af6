"""`pretrain verify` of a run that trains a source encoder."""

from pathlib import Path

import pytest

from pretrain.config.run_config import RunConfig
from tests.helpers.families import family_config
from tests.helpers.planted import check_sound, table


@pytest.mark.slow
def test_layouts_without_a_fault_are_the_same_run(tmp_path: Path) -> None:
    tree = family_config("bart").model_dump(mode="json")
    tree |= {"objective": {"name": "text_to_text"}, "finetune": {"train": "source_encoder"}}
    tree["model"] |= {"binary_head": False, "source_encoder": {"layers": 6}}
    layouts = ["tp2", "cp2", "tp2+sp", "pp2", "dp2+zero3"]
    check_sound(table(RunConfig.model_validate(tree), tmp_path, layouts))
