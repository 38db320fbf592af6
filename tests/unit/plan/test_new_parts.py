"""A new part of a model touches at most one file of the planner."""

import ast
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from pretrain.config.attention import Heads, Pattern
from pretrain.config.families import CAPABILITIES
from pretrain.config.load import load
from pretrain.config.model import Model
from pretrain.config.model_values import ModelValues
from pretrain.config.patterns.base import PatternSettings
from pretrain.config.positions import Positions
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.names import parse_layout
from pretrain.plan.device import find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import constants
from pretrain.plan.estimate.seconds import step_seconds
from pretrain.plan.planned import check_planned

PLAN = Path(__file__).parents[3] / "pretrain" / "plan"
PARTS = ("pretrain.config.attention", "pretrain.config.families", "pretrain.config.positions", "pretrain.objectives")
SHARED = "pretrain.config.patterns.base"
"""What all patterns answer."""


def _part_names() -> set[str]:
    """Names of families, positions, patterns, norms and activations, as configs spell them."""
    kinds = [kind for union in (Positions, Pattern) for kind in get_args(get_args(union)[0])]
    named = {str(kind.model_fields["name"].default) for kind in kinds}
    literals = {value for key in ("norm_type", "activation") for value in get_args(Model.model_fields[key].annotation)}
    return named | literals | set(CAPABILITIES) | {"sandwich"}


def _names_a_part(path: Path, names: set[str]) -> bool:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and node.value in names:
            return True
        module = node.module if isinstance(node, ast.ImportFrom) else None
        if module is not None and module != SHARED and module.startswith((*PARTS, "pretrain.config.patterns")):
            return True
    return False


def test_at_most_one_file_of_the_planner_names_parts_of_models() -> None:
    names = _part_names()
    assert {"alibi", "banded", "rms", "relu", "albert"} <= names
    assert Heads.model_fields["name"].default in names
    assert [path.name for path in sorted(PLAN.rglob("*.py")) if _names_a_part(path, names)] == ["model_shapes.py"]


def test_a_part_of_a_package_without_work_is_named_in_place_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(RunConfig, "gpt3/125m", ["model.vocabulary=50257"])
    check_planned(config)
    monkeypatch.setattr(ModelValues, "parts_apart", ("gain",))
    with pytest.raises(ConfigError, match=r"^model\.gain is not planned: .* pretrain rehearse CONFIG "):
        check_planned(config)


class Nearest(PatternSettings):
    """A pattern that the planner has never heard of: seven keys for each query."""

    name: Literal["nearest"] = "nearest"

    def head(self, layer: int, head: int, length: int | None) -> Any:
        raise AssertionError("a plan needs no masks")

    def mean_keys(self, length: int, causal: bool) -> float:
        return 7.0


def test_a_new_pattern_is_planned_by_what_it_declares() -> None:
    run = load(RunConfig, "gpt3/1.3b", ["model.vocabulary=50257", "model.attention.pattern=[dense]"])
    attention = run.model.attention.model_copy(update={"pattern": [Nearest()]})
    sparse = run.model_copy(update={"model": run.model.model_copy(update={"attention": attention})})
    choices = [LayoutChoice(parse_layout("dp8", zero=0), 1, "none")]
    work, dense = (WorkloadBuilder(one, find_device("h100"), 8).build(choices) for one in (sparse, run))
    assert work.stacks[0].keys.tolist() == [7.0]
    assert work.attention.key_copies.tolist() == [1.0]
    assert step_seconds(work, constants()).compute[0] < step_seconds(dense, constants()).compute[0]
