"""Distillation on ranks that share experts: those of the model, of its teacher, or of both, are the same run."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.config.run_config import RunConfig
from pretrain.engine.base import TeacherWeights
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, expert_ranks, plan_layout
from tests.helpers.breadth import slow
from tests.helpers.families import family_config, train_family
from tests.helpers.planted import check_sound, table
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, whole, whole_state

TOLERANCE = 1e-5
DEEPSPEED = {"zero": 2, "zero_engine": "deepspeed"}
PAIRS = {  # of a model and its teacher
    "both": ("biased_experts", "mixtral"),
    "teacher": ("llama", "mixtral"),
    "model": ("biased_experts", "llama"),
}
LAYOUTS = [
    {"expert": 2},
    {"expert": 4, "zero": 0},
    {"expert": 2, "tensor": 2, "sequence": True, "recompute": "full"},
    {"expert": 4, "tensor": 2, "sequence": True, "expert_tensor": 1},
    {"expert": 2, "pipeline": 2, "virtual": 2, **DEEPSPEED},
    {"expert": 2, "context": 2, **DEEPSPEED, "zero": 1},
]


def _config(pair: str, parallel: dict[str, Any]) -> RunConfig:
    model, teacher = PAIRS[pair]
    student = family_config(model, parallel=parallel)
    of_teacher = family_config(teacher).model.model_dump(mode="json") | {"layers": 8}
    distillation = {"teacher": "unused", "teacher_model": of_teacher, "temperature": 2.0, "cosine_weight": 1.0}
    return RunConfig.model_validate(student.model_dump(mode="json") | {"distillation": distillation})


def _runs(pair: str, parallels: list[dict[str, Any]]) -> list[Any]:
    """Curves, and the teacher's and the model's final weights."""
    found = []
    for parallel in parallels:
        engine = build_engine(_config(pair, parallel))
        engine.part(TeacherWeights).initialise()
        curve = train_family(engine, range(1, 4))
        found.append((curve, whole(engine.part(TeacherWeights).weights_state()), whole_state(engine)))
        meet_again()
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("pair", "layouts"), [("both", LAYOUTS[:1]), *(slow((pair, LAYOUTS)) for pair in PAIRS)])
def test_a_model_learns_from_its_teacher_as_on_one_rank(pair: str, layouts: list[dict[str, Any]]) -> None:
    ((curve, teacher, state),) = run_ranks(1, _runs, pair, [{}], timeout_s=200)[0]
    for found, other_teacher, other_state in run_ranks(
        2 if layouts == LAYOUTS[:1] else 4, _runs, pair, layouts, timeout_s=600
    )[0]:
        assert np.abs(np.array(found) - np.array(curve)).max() <= TOLERANCE
        assert other_state.keys() == state.keys()
        assert other_teacher.keys() == teacher.keys()
        for name, value in teacher.items():
            assert np.array_equal(other_teacher[name], value), name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_verify_says_so(tmp_path: Path) -> None:
    check_sound(table(_config("both", {}), tmp_path, ["ep2", "ep2+zero0", "tp2ep2+sp", "tp2ep4etp1+sp"]))


def test_experts_of_both_are_divided() -> None:
    tree = _config("both", {"expert": 4}).model_dump(mode="json")
    tree["distillation"]["teacher_model"]["experts"]["count"] = 6
    config = RunConfig.model_validate(tree)
    words = "distillation.teacher is computed on the layout of the model, and parallel.expert=4 does not divide"
    with pytest.raises(ConfigError, match=re.escape(words)):
        plan_layout(config, 4)
    assert expert_ranks(config, Layout(world=8)) == [1, 2], "as a plan tries them"
