"""The features against counts in plain Python, the chance to stay against its closed form, and the step."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from data_pipeline.errors import DataError
from data_pipeline.reading.documents import Document
from data_pipeline.steps.quality import Quality, lomax
from data_pipeline.text import sampling
from data_pipeline.text.features import HashedCounts
from data_pipeline.text.quality_model import QualityModel, train
from data_pipeline.text.sampling import chance
from data_pipeline.text.words import Words
from tests.helpers.steps import documents_of, run_local

KEYS = np.random.default_rng(0).integers(0, 2**64, 200_000, np.uint64).tolist()


def make_texts(seed: int, count: int, letters: str) -> list[str]:
    """Texts of words that all begin with one of `letters`, mixed with words that both kinds have."""
    draw = random.Random(seed)
    own = [letter + other for letter in letters for other in "abcdefghij"]
    both = [f"and{number}" for number in range(40)]
    return [" ".join(draw.choices(own, k=5) + draw.choices(both, k=draw.randint(20, 60))) for _ in range(count)]


def write(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def test_rows_are_logs_of_word_counts_scaled_to_length_one() -> None:
    draw = random.Random(0)
    texts = [" ".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(0, 40))) for _ in range(50)]
    texts[7] = "..."
    rows = HashedCounts.of(texts, 11)
    for number, text in enumerate(texts):
        counts = Counter(int(Words.of([word]).hashes[0]) % 11 for word in text.split() if word != "...")
        length = math.sqrt(sum(math.log(1 + count) ** 2 for count in counts.values()))
        here = slice(rows.firsts[number], rows.firsts[number + 1])
        assert rows.buckets[here].tolist() == sorted(counts)
        expected = [math.log(1 + counts[bucket]) / length for bucket in sorted(counts)]
        assert rows.values[here].tolist() == pytest.approx(expected, rel=1e-14)
    assert len(rows.firsts) == 51


def test_a_score_depends_neither_on_other_texts_nor_on_how_often_a_text_is_repeated() -> None:
    weights = np.random.default_rng(0).normal(size=1000)
    model = QualityModel(weights, 0.25, {}, "")
    texts = make_texts(0, 40, "xyz")
    together = model.scores(texts)
    assert together.tolist() == [model.scores([text])[0] for text in texts]
    odds = [0.25 + float(HashedCounts.of([text], 1000).dot(weights)[0]) for text in texts]
    assert together == pytest.approx([1 / (1 + math.exp(-value)) for value in odds])
    assert model.scores(["one two three " * 50]) == pytest.approx(model.scores(["one two three"]))


@pytest.mark.parametrize(("score", "published"), [(0.0, 0.00195), (0.5, 0.0260), (0.9, 0.424), (1.0, 1.0)])
def test_documents_stay_with_the_chance_of_the_closed_form(score: float, published: float) -> None:
    chance = (2 - score) ** -9
    assert chance == pytest.approx(published, rel=3e-3)
    kept = int((lomax(KEYS, 9, seed=0) > 1 - score).sum())
    # A sum of 200,000 draws is within five standard deviations but for one seed in a million.
    assert abs(kept - len(KEYS) * chance) <= 5 * math.sqrt(len(KEYS) * chance * (1 - chance))


@pytest.mark.parametrize("alpha", [1.5, 9])
def test_the_draw_is_numpy_s_pareto(alpha: float) -> None:
    """The largest distance of the two distributions, against Kolmogorov's and Smirnov's bound at one in a million."""
    drawn = np.sort(lomax(KEYS, alpha, seed=1))
    other = np.sort(np.random.default_rng(1).pareto(alpha, len(drawn)))
    below = np.searchsorted(other, drawn) / len(other)
    bound = math.sqrt(-math.log(1e-6 / 2) / len(drawn))  # of two samples of this size each
    assert abs(below - np.arange(len(drawn)) / len(drawn)).max() < bound


def test_the_draw_is_independent_of_the_part_of_the_key_that_holds_out_documents() -> None:
    low = [key for key in KEYS if key < 2**57]
    kept = int((lomax(low, 9, seed=0) > 0.5).sum())
    chance = 1.5**-9
    assert abs(kept - len(low) * chance) <= 5 * math.sqrt(len(low) * chance * (1 - chance))
    assert lomax(KEYS[:100], 9, seed=0).tolist() == [lomax([key], 9, seed=0)[0] for key in KEYS[:100]]
    correlation = np.corrcoef(np.log1p(lomax(KEYS, 9, 0)), np.log1p(lomax(KEYS, 9, 1)))[0, 1]
    assert abs(correlation) < 5 / math.sqrt(len(KEYS))


def test_a_build_learns_which_texts_are_good_and_keeps_those(tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", make_texts(1, 300, "klm"))
    raw = write(tmp_path / "raw.jsonl", make_texts(2, 300, "stu"))
    step = Quality(good=good, raw=raw, features=2**12)
    facts = [[task.run() for task in tasks] for tasks in step.prepare(tmp_path)][-1][0]
    assert (facts["good"], facts["raw"], facts["held_out"]) == (300, 300, 60)
    assert facts["accuracy"] > 0.95
    assert facts["roc_auc"] > 0.99
    fine, poor = make_texts(3, 400, "klm"), make_texts(4, 400, "stu")
    kept, stats = run_local(step, [*fine, *poor], tmp_path)
    model = QualityModel.load(tmp_path / "quality.npz")
    for texts in (fine, poor):
        chances = (2 - model.scores(texts)) ** -9
        stay = len(set(kept) & set(texts))
        assert abs(stay - chances.sum()) <= 5 * math.sqrt((chances * (1 - chances)).sum())
    assert len(set(kept) & set(fine)) > 10 * len(set(kept) & set(poor))
    assert stats.dropped == {"quality": 800 - len(kept)}
    shuffled = random.Random(0).sample([*fine, *poor], 800)
    again = [text for text in shuffled for text in run_local(step, [text], tmp_path)[0]]
    assert set(again) == set(kept)
    assert [text for text in [*fine, *poor] if text in set(again)] == kept, "in order"


def test_the_model_is_the_same_file_for_any_order_and_cut_of_its_texts(tmp_path: Path) -> None:
    good, raw = make_texts(1, 120, "klm"), make_texts(2, 150, "stu")
    one = train(documents_of(good), documents_of(raw), documents=100, features=2**10)
    two = train(documents_of([*good[60:], *good]), documents_of(raw[::-1], "b"), documents=100, features=2**10)
    one.save(tmp_path / "one.npz")
    two.save(tmp_path / "two.npz")
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    other = train(documents_of(good), documents_of(raw), documents=100, features=2**10, seed=1)
    assert other.digest != one.digest
    assert (one.facts["good"], one.facts["raw"]) == (100, 100)


def test_the_model_is_the_same_for_texts_in_one_file_and_in_many_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, raw = make_texts(1, 300, "klm"), make_texts(2, 800, "stu")
    raw.sort(
        key=lambda text: int(chance([Document((text,), "", 0).key], "train/0")[0])
    )  # all of the choice in one file
    monkeypatch.setattr(sampling, "_LEAST", 5)
    models, again = [], []
    for files in (1, 8):
        folder = tmp_path / str(files)
        for kind, texts in (("good", good), ("raw", raw)):
            (folder / kind).mkdir(parents=True)
            each = -(-len(texts) // files)
            for number in range(files):
                write(folder / kind / f"{number}.jsonl", texts[number * each : (number + 1) * each])
        monkeypatch.setattr("data_pipeline.steps.quality._TASK_FILES", 1)
        step = Quality(good=str(folder / "good"), raw=str(folder / "raw"), features=2**10, training_documents=100)
        results = [[task.run() for task in tasks] for tasks in step.prepare(folder)]
        models.append((folder / "quality.npz").read_bytes())
        again.append(results[2])
    assert models[0] == models[1]
    assert again[0] == [False, False]
    assert len(again[1]) == 16
    assert again[1][8], "the task that has the whole choice kept too few, and read once more"
    assert not any(again[1][10:])


def test_what_is_in_both_kinds_is_good() -> None:
    good, raw = make_texts(1, 60, "klm"), make_texts(2, 60, "stu")
    both = train(documents_of(good), documents_of([*raw, *good[:50]]), documents=1000, features=2**10)
    assert both.digest == train(documents_of(good), documents_of(raw), documents=1000, features=2**10).digest


def test_a_model_of_another_build_is_taken_by_its_path(tmp_path: Path) -> None:
    model = train(documents_of(make_texts(1, 60, "klm")), documents_of(make_texts(2, 60, "stu")), 100, 2**10)
    model.save(tmp_path / "shared.npz")
    step = Quality(path=tmp_path / "shared.npz")
    ((task,),) = step.prepare(tmp_path)
    assert task.run() == {**model.facts, "digest": model.digest}
    texts = make_texts(3, 50, "kls")
    expected = [
        text
        for text, score in zip(texts, model.scores(texts), strict=True)
        if lomax([Document((text,), "", 0).key], 9, 0)[0] > 1 - score
    ]
    kept, _ = run_local(step, texts, tmp_path / "step")
    assert 0 < len(kept) < len(texts)
    assert kept == expected


def test_errors_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There are 3 different good documents"):
        train(documents_of(make_texts(0, 3, "a") * 20), documents_of(make_texts(1, 50, "b")), 1000)
    (tmp_path / "bad.npz").write_bytes(b"no model")
    for path in (tmp_path / "bad.npz", tmp_path / "missing.npz"):
        with pytest.raises(DataError, match=re.escape(str(path))):
            QualityModel.load(path)
    for wrong in ({"good": "a"}, {}, {"good": "a", "raw": "b", "path": "c"}, {"raw": "b", "path": "c"}):
        with pytest.raises(ValidationError, match="give one"):
            Quality(**wrong)


def test_encyclopedia_is_told_from_plays(real_text: Path) -> None:
    wiki, plays = ((real_text / f"{name}.txt").read_text() for name in ("wikitext2_valid", "tinyshakespeare"))
    cuts = [[text[first : first + 1500] for first in range(0, 300_000, 1500)] for text in (wiki, plays)]
    model = train(*(documents_of(texts) for texts in cuts), documents=1000, features=2**14)
    assert model.facts["held_out"] == 40
    assert model.facts["accuracy"] >= 0.95


def test_a_model_of_an_earlier_version_scores_as_it_did(tmp_path: Path) -> None:
    """Its words of Tibetan are whole phrases, those of Thai single vowels."""
    text = "བོད་ཡིག་ནི ฉันรักเธอ"
    header = {"format": 1, "bias": 0.0, "facts": {}, "digest": ""}
    weights = np.arange(2**12, dtype=float)
    np.savez(tmp_path / "old.npz", header=np.frombuffer(json.dumps(header).encode(), np.uint8), weights=weights)
    old = QualityModel.load(tmp_path / "old.npz")
    rows = HashedCounts.of([text], len(weights), "listed")
    assert old.scores([text]).tolist() == [(1 + np.tanh(rows.dot(weights)[0] / 2)) / 2]
    assert rows.firsts[1] != HashedCounts.of([text], len(weights)).firsts[1]
    old.save(tmp_path / "copy.npz")
    assert QualityModel.load(tmp_path / "copy.npz").rule == "listed"
    assert Quality(path=tmp_path / "old.npz").version_of_settings() == 1  # datasets keep their identity
    assert Quality(good="a", raw="b").version_of_settings() == 2
