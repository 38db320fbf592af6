"""What a terminal shows of an evaluation, and how its held-out loss goes with that of training."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.dataset.dataset import Dataset
from pretrain.evaluate.evaluator import evaluate
from pretrain.evaluate.report.in_training import InTraining, explanation, in_training
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.settings import EvalSettings
from pretrain.evaluate.table import scores, table
from pretrain.evaluate.tasks.jsonl import Problem
from tests.helpers.breadth import slow
from tests.unit.evaluate.fakes import LENGTH, FakeEngine
from tests.unit.evaluate.report.pages import many

RESULTS: dict[str, Any] = {
    "last_word": {
        "0": {
            "documents": 2000, "metric": "accuracy",
            "accuracy_count": 1234, "accuracy": 0.617, "accuracy_stderr": 0.0109,
            "truncated": 3, "mean_shots": 0.0, "redrawn": 0, "answer_tokens": 24, "answers_cut": 7,
            "perplexity": 12.345, "perplexity_stderr": 0.5,
        },
        "8": {
            "documents": 1, "metric": "accuracy", "accuracy_count": 1, "accuracy": 1.0, "accuracy_stderr": None,
            "truncated": 0, "mean_shots": 8.0, "redrawn": 2,
            "perplexity": None, "perplexity_stderr": None,
        },
    },
    "heldout": {
        "0": {
            "loss": 3.5741, "token_count": 46814, "perplexity": 35.66, "word_perplexity": None, "byte_perplexity": 7.5,
        }
    },
}  # fmt: skip


def test_the_table_has_tasks_by_shots_with_errors_and_metrics_in_words() -> None:
    problems = {"last_word": [Problem("words.jsonl:7", "it is not JSON"), Problem("words.jsonl:9", "it is empty")]}
    assert table(RESULTS, "Why it differs.", 125_000_000, problems).splitlines() == [
        "task       shots  documents         score  metric",
        "last_word      0      2,000  61.7 ± 1.1 %  accuracy of target",
        "               8          1       100.0 %",
        "cut to fit the model: last_word 0-shot 3 of 2,000",
        "answers cut: last_word 0-shot 7 of 2,000 at 24 tokens",
        "examples drawn again, as they held the question and its answer: last_word 8-shot 2",
        "not scored: 2 of last_word, first words.jsonl:7: it is not JSON",
        "",
        "held-out loss 3.5741 nats per token over 46,814 tokens (perplexity 35.66 per token, 7.5 per byte)",
        "Why it differs.",
    ]


def test_held_out_text_without_spaces_has_no_figure_per_word() -> None:
    known = {"word_perplexity": 91.5, "character_perplexity": 12.5}
    for unspaced, figures in (
        (0.1, "35.66 per token, 91.5 per word, 7"),
        (0.9, "35.66 per token, 12.5 per character, 7"),
    ):
        held_out = RESULTS["heldout"]["0"] | known | {"unspaced_share": unspaced}
        assert figures in table({"heldout": {"0": held_out}}, None, 1)


def test_every_task_has_its_row(engine: FakeEngine, dataset: Dataset, data_dir: Path) -> None:
    settings = EvalSettings(shots=(0, 1), limit=2, data_dir=data_dir)
    scorer = CausalScorer(engine, dataset.tokenizer(), LENGTH)
    found = evaluate(engine, scorer, dataset, ["heldout", "last_word", "reversed_words"], settings)
    lines = table(found.results, None, 1).splitlines()
    assert [line.split()[0] for line in lines[1:] if line] == ["last_word", "1", "reversed_words", "1", "held-out"]


SOURCES = {
    "en": {"loss_sum": 150.0, "token_count": 50, "loss": 3.0, "bits_per_byte": 1.25},
    "a-longer-name": {"loss_sum": 9000.0, "token_count": 4500, "loss": 2.0, "bits_per_byte": None},
}


def test_each_of_several_sources_has_its_loss_and_bits_per_byte() -> None:
    results = {"heldout": {"0": {**RESULTS["heldout"]["0"], "sources": SOURCES}}}
    assert [line for line in table(results, None, 1).splitlines() if line][1:] == [
        "source             tokens  nats per token  bits per byte",
        "en                     50          3.0000         1.2500",
        "a-longer-name       4,500          2.0000",
    ]
    found = scores(results)
    assert (found["eval/heldout/en/loss"], found["eval/heldout/en/bits_per_byte"]) == (3.0, 1.25)
    assert "eval/heldout/a-longer-name/bits_per_byte" not in found


@pytest.mark.parametrize("draws", [slow(1), 3])
def test_every_kind_of_task_stands_in_100_columns_with_chance_draws_and_gpt_3(draws: int) -> None:
    results = many(draws=draws).results
    results["a_task_of_a_very_long_name_that_its_user_has_declared"] = results["hellaswag"]
    lines = table(results, None, 350_000_000).splitlines()
    assert max(map(len, lines)) <= 100
    assert ("draws" in lines[0]) == (draws == 3)
    rows = {line.split()[0]: line for line in lines if line}
    assert "accuracy per token" in rows["hellaswag"]
    assert "25.0 %" in rows["hellaswag"]
    assert "accuracy unconditional" in rows["arc_easy"]
    assert rows["arithmetic_2da"].endswith("0.65"), "GPT-3 Medium, zero-shot, from the paper's table"
    assert "GPT-3 350M" in lines[0]
    assert any(row.startswith("a_task_of_a_") and row.endswith("…") for row in rows)


def test_a_tracker_gets_each_score_by_task_and_shots() -> None:
    found = scores(RESULTS)
    assert found["eval/last_word/0-shot/accuracy"] == 0.617
    assert found["eval/last_word/0-shot/accuracy_stderr"] == 0.0109
    assert found["eval/last_word/8-shot/documents"] == 1.0
    assert found["eval/last_word/0-shot/perplexity_stderr"] == 0.5
    assert found["eval/last_word/0-shot/truncated"] == 3.0
    assert found["eval/heldout/loss"] == 3.5741
    assert "eval/heldout/word_perplexity" not in found, "what isn't known is no number"


def test_a_tracker_gets_the_metrics_of_every_kind_of_task_and_their_spread() -> None:
    results = many(draws=2).results
    found = scores(results)
    for task, metric in (("hellaswag/20", "accuracy_per_token"), ("cb/32", "macro_f1"), ("wmt14_en_fr/64", "bleu")):
        name, k = task.split("/")
        for part in ("", "_stderr", "_spread"):
            assert found[f"eval/{name}/{k}-shot/{metric}{part}"] == results[name][k][f"{metric}{part}"]
    assert found["eval/hellaswag/0-shot/chance"] == 0.25
    assert found["eval/ptb/0-shot/word_perplexity"] == results["ptb"]["0"]["word_perplexity"]
    assert all(isinstance(value, float) for value in found.values())


@pytest.mark.parametrize(
    ("token_count", "loss", "limit", "said"),
    [
        (46814, 3.5741, None, "Here it is the mean over all 46,814 tokens. The model is the same, the text is more"),
        (5120, 3.9, 20, "Here it is the mean over its first 5,120. The model is the same, the text is less"),
        (8192, 3.88574, 32, "During training it was 3.8857 too, over the same 8,192 tokens."),
        (8192, 3.8859, 32, "During training it was 3.8857 over as many tokens: rounding differs"),
        (8192, 3.7, 32, "which rounding does not explain"),
    ],
)
def test_a_difference_from_training_is_explained(token_count: int, loss: float, limit: int | None, said: str) -> None:
    then = InTraining(3.8857, 8192, 32)
    text = explanation(then, {"loss": loss, "token_count": token_count}, limit)
    assert said in text
    assert ("--limit 32 scores what training scored" in text) == (token_count != 8192)


def test_the_loss_of_training_is_the_newest_of_that_step(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"event": "heldout", "step": 20, "loss": 5.0, "predicted_tokens": 64},
        {"event": "heldout", "step": 40, "loss": 4.0, "predicted_tokens": 64},
        {"event": "saved", "step": 40},
        {"event": "heldout", "step": 40, "loss": 4.5, "predicted_tokens": 32},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert in_training(tmp_path, 40, 8) == InTraining(4.5, 32, 8)
    assert in_training(tmp_path, 30, 8) is None
    assert in_training(tmp_path / "none", 40, 8) is None
