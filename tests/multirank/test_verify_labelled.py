"""`pretrain verify` of runs on labelled rows: the same run where padding is cut, which has no scores, and where
gradients are zero but for rounding: those of what adds the same to all positions of a softmax."""

from pathlib import Path
from typing import Any

import pytest

from pretrain.config.run_config import RunConfig
from tests.helpers.breadth import only
from tests.helpers.families import family_config
from tests.helpers.planted import check_sound, table

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "spans": ("bert", {"name": "spans", "stride": 4, "max_question": 8}, {}),
    "spans with a conditional end": (
        "xlnet",
        {"name": "spans", "stride": 4, "max_question": 8, "conditional_end": True},
        {},
    ),
    "classes by LoRA": ("bert", {"name": "classification", "labels": ["a", "b"]}, {"lora": {"rank": 4}}),
    "choices of a decoder": ("bloom", {"name": "choice", "max_choices": 4, "sequence_length": 16}, {}),
}


@pytest.mark.parametrize("name", only(["spans"], CASES))
def test_layouts_without_a_fault_are_the_same_run(name: str, tmp_path: Path) -> None:
    family, objective, finetune = CASES[name]
    tree = family_config(family).model_dump(mode="json") | {"objective": objective, "finetune": finetune}
    tree["model"]["binary_head"] = False
    check_sound(table(RunConfig.model_validate(tree), tmp_path, ["tp2", "cp2"]))
