"""Texts rated by themselves: every token once, after as much as its window holds, however long the text is."""

import json
import math
from pathlib import Path

import pytest
import torch

from pretrain.evaluate.measures.perplexity import windows
from pretrain.evaluate.run import Settings, evaluate
from pretrain.evaluate.scorers.causal import CausalScorer
from tests.unit.evaluate.fakes import FakeEngine, ToyTokenizer

TASK = """
name: pages
title: Pages
source: made up
file: pages.jsonl
judged: perplexity
target: "{{ page }}"
metric: word_perplexity
"""
TEXTS = ["the cat is singing to a dog. " * 12, "short"]
LENGTH = 32


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 12, 13, 40])
def test_every_token_is_predicted_once_after_half_a_window_of_others(count: int) -> None:
    ids = list(range(100, 100 + count))
    found = list(windows(ids, 0, 8, 4))
    assert [token for _, predicted in found for token in predicted] == ids
    text = [0, *ids]
    for read, predicted in found:
        assert len(read) + len(predicted) <= 9
        place = text.index(predicted[0])
        assert read == text[place - len(read) : place]
        assert len(read) >= min(4, place)


def test_texts_longer_than_the_model_are_rated_whole(
    engine: FakeEngine, tokenizer: ToyTokenizer, tmp_path: Path
) -> None:
    (tmp_path / "pages.yaml").write_text(TASK)
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps({"page": text}) + "\n" for text in TEXTS))
    scorer = CausalScorer(engine, tokenizer, LENGTH)  # type: ignore[arg-type]
    settings = Settings(shots=(0, 3), data_dir=tmp_path)
    scored = evaluate(engine, scorer, None, [str(tmp_path / "pages.yaml")], settings)  # type: ignore[arg-type]
    assert scored.results["pages"].keys() == {"0"}, "nothing is shown before a text"
    result = scored.results["pages"]["0"]
    expected = 0.0
    for text in TEXTS:
        for read, predicted in windows(tokenizer.encode(text), tokenizer.end_of_text, LENGTH, LENGTH // 2):
            with torch.no_grad():
                says = engine.model(torch.tensor([[*read, *predicted][:-1]])).logits[0].log_softmax(-1)
            expected += sum(says[len(read) - 1 + n, token].item() for n, token in enumerate(predicted))
    words = sum(len(text.split()) for text in TEXTS)
    assert (result["documents"], result["not_asked"], result["truncated"]) == (2, 0, 0)
    assert result["log_probability_sum"] == pytest.approx(expected, rel=1e-5)
    assert result["word_perplexity"] == pytest.approx(math.exp(-expected / words), rel=1e-4)
    assert result["token_count"] == sum(len(tokenizer.encode(text)) for text in TEXTS)
