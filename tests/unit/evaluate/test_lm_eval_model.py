"""lm-eval finds our models by name. What they score is in tests/end_to_end/test_eval.py."""

import contextlib
import sys
from pathlib import Path

import pytest
from lm_eval.api.registry import get_model

from pretrain.__main__ import main
from pretrain.errors import ConfigError
from pretrain.evaluate import lm_eval_model


def test_the_registry_has_ours_by_name() -> None:
    assert get_model("pretrain") is lm_eval_model.CheckpointModel


def test_the_command_is_lm_eval_s_with_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    typed: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(lm_eval_model, "run_harness", lambda: typed.append(sys.argv))
    assert main(["lm-eval", "--model", "pretrain", "--tasks", "a"]) == 0
    assert typed == [["lm-eval", "--model", "pretrain", "--tasks", "a"]]


@pytest.mark.parametrize("typed", [[], ["run"], ["ls", "--help"]])
def test_usage_names_the_command_that_was_typed(
    typed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    with contextlib.suppress(SystemExit):
        main(["lm-eval", *typed])
    printed = capsys.readouterr().out
    assert printed.startswith("usage: pretrain lm-eval ")
    assert printed.count("pretrain lm-eval ") == printed.count("lm-eval ")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            ["--tasks", "a", "--log_samples"],
            "lm-eval: Specify --output_path if providing --log_samples or --predict_only; see `pretrain lm-eval run",
        ),
        (["--config", "nowhere.yaml"], "lm-eval: Config file not found: "),
    ],
)
def test_what_lm_eval_refuses_is_a_sentence(
    typed: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    assert main(["lm-eval", "--model", "pretrain", *typed]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("pretrain: "))
    assert line.startswith(f"pretrain: {said}")


def test_model_args_without_a_checkpoint_are_a_sentence() -> None:
    with pytest.raises(ConfigError, match="name no checkpoint, but run: say --model_args checkpoint=RUN"):
        lm_eval_model.CheckpointModel(run="runs/book")


def test_no_tasks_are_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise ValueError("No tasks specified, or no tasks found. Please verify the task names.")

    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(lm_eval_model, "run_harness", fails)
    assert main(["lm-eval", "run", "--model", "pretrain"]) == 2
    assert "pretrain: lm-eval: No tasks specified" in capsys.readouterr().err


def test_an_error_in_scoring_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(lm_eval_model, "run_harness", fails)
    with pytest.raises(ValueError, match="a fault"):
        main(["lm-eval", "--model", "pretrain", "--tasks", "a"])


def test_the_command_is_refused_under_a_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert main(["lm-eval", "--model", "pretrain"]) == 2
    assert "leave the launcher out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [("checkpoint={}", "neither a checkpoint nor a run"), ("checkpoint={},batch_size=auto", "batch_size=auto")],
)
def test_a_mistake_is_a_sentence(arguments: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        get_model("pretrain").create_from_arg_string(arguments.format(tmp_path))
