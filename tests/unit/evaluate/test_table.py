"""What a terminal shows of an evaluation, and how its held-out loss goes with that of training."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.dataset.dataset import Dataset
from pretrain.evaluate.in_training import InTraining, explanation, in_training
from pretrain.evaluate.run import Settings, evaluate
from pretrain.evaluate.table import scores, table
from tests.unit.evaluate.fakes import LENGTH, FakeEngine

RESULTS: dict[str, Any] = {
    "last_word": {
        "0": {
            "documents": 2000, "accuracy_count": 1234, "accuracy": 0.617, "accuracy_stderr": 0.0109,
            "perplexity": 12.345, "perplexity_stderr": 0.5,
        },
        "8": {
            "documents": 1, "accuracy_count": 1, "accuracy": 1.0, "accuracy_stderr": None,
            "perplexity": None, "perplexity_stderr": None,
        },
    },
    "heldout": {
        "0": {
            "loss": 3.5741, "token_count": 46814, "perplexity": 35.66, "word_perplexity": None, "byte_perplexity": 7.5,
        }
    },
}  # fmt: skip


def test_the_table_has_tasks_by_shots_with_counts_and_errors() -> None:
    assert table(RESULTS, "Why it differs.").splitlines() == [
        "task       shots  documents  right                  score   perplexity",
        "last_word      0      2,000  1,234  61.7 ± 1.1 % accuracy  12.35 ± 0.5",
        "               8          1      1       100.0 % accuracy             ",
        "",
        "held-out loss 3.5741 nats per token over 46,814 tokens (perplexity 35.66 per token, 7.5 per byte)",
        "Why it differs.",
    ]


def test_every_task_has_its_row(engine: FakeEngine, dataset: Dataset, data_dir: Path) -> None:
    settings = Settings(shots=(0, 1), sequence_length=LENGTH, limit=2, data_dir=data_dir)
    found = evaluate(engine, dataset.tokenizer(), dataset, ["heldout", "last_word", "reversed_words"], settings)
    lines = table(found.results, None).splitlines()
    assert [line.split()[0] for line in lines[1:] if line] == ["last_word", "1", "reversed_words", "1", "held-out"]


def test_a_tracker_gets_each_score_by_task_and_shots() -> None:
    found = scores(RESULTS)
    assert found["eval/last_word/0-shot/accuracy"] == 0.617
    assert found["eval/last_word/0-shot/accuracy_stderr"] == 0.0109
    assert found["eval/last_word/8-shot/documents"] == 1.0
    assert found["eval/heldout/loss"] == 3.5741
    assert "eval/heldout/word_perplexity" not in found, "what isn't known is no number"


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
