"""Texts rated by themselves: every token once, after as much as its window holds, however long the text is."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pretrain.evaluate.evaluator import evaluate
from pretrain.evaluate.measures.base import ForTask
from pretrain.evaluate.measures.perplexity import PerplexityMeasure, windows
from pretrain.evaluate.outcomes import Outcomes
from pretrain.evaluate.report.metrics import unfit_counts
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.settings import EvalSettings
from pretrain.evaluate.tasks.base import TaskDocument
from pretrain.evaluate.tasks.registry import task_named
from tests.unit.evaluate.fakes import FakeEngine, ToyTokenizer

TASK = """
task: pages
dataset_path: json
dataset_kwargs: {data_files: {test: pages.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_target: "{{ page }}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
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
    settings = EvalSettings(shots=(0, 3), data_dir=tmp_path)
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


def test_text_without_spaces_has_a_perplexity_per_character_and_is_counted() -> None:
    documents = [TaskDocument("", "我去了北京很好"), TaskDocument("", "a word"), TaskDocument("", "한국어 문장")]
    metrics = ("word_perplexity", "bits_per_character", "bits_per_byte")
    about: Any = SimpleNamespace(task=SimpleNamespace(metrics=metrics), documents=documents)
    measure = PerplexityMeasure(about, SimpleNamespace(length=LENGTH))  # type: ignore[arg-type]
    outcomes = [{"log_probability": -value, "tokens": 3} for value in (14.0, 6.0, 5.0)]
    result = measure.result(outcomes, documents)
    assert (result["character_count"], result["byte_count"], result["word_count"]) == (19, 43, 5)
    assert result["character_perplexity"] == pytest.approx(math.exp(25 / 19))
    assert result["bits_per_character"] == pytest.approx(25 / 19 / math.log(2))
    assert result["bits_per_byte"] == pytest.approx(25 / 43 / math.log(2))
    assert result["unspaced_texts"] == 1
    assert "1 of 3 documents in a script without spaces" in unfit_counts({"t": {"0": result | {"documents": 3}}})[0]


def test_the_standard_error_is_that_of_documents_drawn_anew(engine: FakeEngine, tokenizer: ToyTokenizer) -> None:
    draw = np.random.default_rng(0)
    documents = [TaskDocument("", "w " * count) for count in draw.integers(5, 60, 300)]
    tokens = np.array([2 * len(document.target) // 2 for document in documents])
    sums = -tokens * draw.normal(2.0, 0.3, 300)
    outcomes = [{"log_probability": s, "tokens": int(t)} for s, t in zip(sums, tokens, strict=True)]
    scorer = CausalScorer(engine, tokenizer, LENGTH)  # type: ignore[arg-type]
    measure = PerplexityMeasure(ForTask(task_named("wikitext"), documents, None), scorer)
    result = measure.result(outcomes, documents)
    words = tokens // 2
    picked = [draw.integers(0, 300, 300) for _ in range(2000)]
    for name, counts in (("token", tokens), ("word", words), ("byte", tokens)):
        anew = np.std([np.exp(-sums[one].sum() / counts[one].sum()) for one in picked])
        assert result[f"{name}_perplexity_stderr"] == pytest.approx(anew, rel=0.1), name
    assert measure.result(outcomes[:1], documents[:1])["word_perplexity_stderr"] is None


def test_the_standard_error_of_a_single_text_is_that_of_its_windows(
    engine: FakeEngine, tokenizer: ToyTokenizer, tmp_path: Path
) -> None:
    (tmp_path / "pages.yaml").write_text(TASK + 'metadata: {pretrain: {join_docs: "\\n"}}\n')
    lines = [f"the {number} sing{'ing' * (number % 3)} of {number * 77}" for number in range(30)]
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps({"page": text}) + "\n" for text in lines))
    scorer = CausalScorer(engine, tokenizer, LENGTH)  # type: ignore[arg-type]
    outcomes = Outcomes(tmp_path / "documents.jsonl")
    names = [str(tmp_path / "pages.yaml")]
    scored = evaluate(engine, scorer, None, names, EvalSettings(shots=(0,), data_dir=tmp_path), outcomes=outcomes)  # type: ignore[arg-type]
    result = scored.results["pages"]["0"]
    (line,) = (tmp_path / "documents.jsonl").read_text().splitlines()
    sums, tokens = np.array(json.loads(line)["outcomes"]["perplexity"]["windows"]).T
    assert sums.sum() == pytest.approx(result["log_probability_sum"])
    assert (len(tokens) > 20, tokens.sum()) == (True, result["token_count"])
    even = (tokens == LENGTH // 2 + 1).nonzero()  # all but the first and the last
    by_token = -sums[even] / tokens[even]
    expected = result["token_perplexity"] * by_token.std(ddof=1) / math.sqrt(len(by_token))
    assert result["token_perplexity_stderr"] == pytest.approx(expected, rel=0.15)
    engine.scored.clear()
    again = evaluate(  # goes on from the file
        engine,
        scorer,
        None,
        names,
        EvalSettings(shots=(0,), data_dir=tmp_path),
        outcomes=Outcomes(tmp_path / "documents.jsonl"),  # type: ignore[arg-type]
    )
    assert (again.results, engine.scored) == (scored.results, [])
