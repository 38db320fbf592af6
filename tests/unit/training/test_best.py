"""The best checkpoint is a function of a run's events."""

import math
from pathlib import Path
from typing import Any

import pytest

from pretrain.errors import ConfigError, RunError
from pretrain.training.best import Evaluations, check_best, evaluations_in, read_evaluations, saved_best_first


def heldout(step: int, loss: float | None) -> dict[str, Any]:
    return {"event": "heldout", "step": step, "loss": loss}


def figures(step: int, **values: float | None) -> dict[str, Any]:
    return {"event": "figures", "step": step, "figures": values}


def resumed(step: int) -> dict[str, Any]:
    return {"event": "resumed", "step": step}


def test_a_loss_is_best_when_low_and_a_figure_in_the_direction_of_its_metric() -> None:
    events = [
        {"event": "started"},
        *(figures(5, accuracy=0.5, mean_squared_error=2.0), heldout(5, 1.0)),
        *(figures(10, accuracy=0.9, mean_squared_error=3.0), heldout(10, 2.0)),
        *(figures(15, accuracy=0.7, mean_squared_error=1.0), heldout(15, 1.5)),
    ]
    ranked = {name: evaluations_in(events, name).best_first for name in ("loss", "accuracy", "mean_squared_error")}
    assert ranked == {"loss": [5, 15, 10], "accuracy": [10, 15, 5], "mean_squared_error": [15, 5, 10]}


@pytest.mark.parametrize("figure", ["loss", "accuracy", "mean_squared_error"])
def test_of_equal_figures_the_earliest_is_best(figure: str) -> None:
    evaluations = Evaluations(figure=figure)
    for step in (15, 5, 10):
        evaluations = evaluations.add(step, 0.25)
    assert evaluations.best_first == [5, 10, 15]


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_undefined_is_never_best(value: float | None) -> None:
    assert Evaluations(figure="loss").add(5, value).best is None
    assert Evaluations(figure="loss").add(5, 3.0).add(10, value).best == 5
    assert Evaluations(figure="loss").add(5, 3.0).add(5, value).best is None, "the step was evaluated again"
    assert evaluations_in([figures(5, f1=None), heldout(5, None)], "f1").best is None


@pytest.mark.parametrize(
    ("back", "kept"),
    [
        (resumed(10), [10, 5]),
        (resumed(9), [5]),
        ({"event": "rolled_back", "to_step": 5, "step": 14, "sample": 3}, [5]),
        ({"event": "rolled_back", "to_step": 0, "step": 14, "sample": 3}, []),
        ({"event": "started"}, []),
    ],
)
def test_evaluations_of_steps_that_were_made_again_do_not_count(back: dict[str, Any], kept: list[int]) -> None:
    before = [{"event": "started"}, heldout(5, 3.0), heldout(10, 2.0), heldout(15, 1.0)]
    assert evaluations_in(before, "loss").best_first == [15, 10, 5]
    assert evaluations_in([*before, back], "loss").best_first == kept
    again = evaluations_in([*before, back, heldout(15, 2.5)], "loss")
    assert again.values[15] == 2.5
    assert again.best_first == sorted([*kept, 15], key=lambda step: again.values[step])


def test_a_run_that_is_about_to_resume_counts_no_later_step(tmp_path: Path) -> None:
    lines = '{"event": "heldout", "step": 5, "loss": 2.0}\n{"event": "heldout", "step": 10, "loss": 1.0}\n'
    (tmp_path / "events.jsonl").write_text(lines)
    assert [read_evaluations(tmp_path, "loss", step).best for step in (4, 5, 9, 10)] == [None, 5, 5, 10]
    assert read_evaluations(tmp_path / "nowhere", "loss", 5).best is None


def test_the_best_that_has_a_checkpoint_comes_first(tmp_path: Path) -> None:
    evaluations = Evaluations(figure="loss", values={5: 3.0, 10: 1.0, 15: 2.0})
    with pytest.raises(RunError, match=r"no checkpoint in .* has a known loss: .*checkpoint\.best"):
        saved_best_first(evaluations, tmp_path)
    for name in ("step-00000005", "step-00000010.damaged", "step-00000015", "step-00000020"):
        (tmp_path / name).mkdir()
    assert [path.name for path in saved_best_first(evaluations, tmp_path)] == ["step-00000015", "step-00000005"]


@pytest.mark.parametrize(
    ("figure", "computed", "sentence"),
    [
        ("acuracy", ("accuracy",), "checkpoint.best=acuracy is no figure of this run: did you mean accuracy?"),
        ("zzz", ("accuracy",), "checkpoint.best=zzz is no figure of this run: choose from loss, accuracy"),
        ("f1", ("accuracy",), "checkpoint.best=f1 is not computed by this run: list it in evaluate.figures"),
        ("f1", (), "checkpoint.best=f1 is not computed by this run: figures are those of models with a task head"),
    ],
)
def test_a_figure_that_is_not_computed_is_refused(figure: str, computed: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_best(figure, computed)
    assert str(error.value).startswith(sentence)
    for fitting in (None, "loss", *computed):
        check_best(fitting, computed)
