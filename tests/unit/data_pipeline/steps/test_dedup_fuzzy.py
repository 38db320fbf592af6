"""Fuzzy deduplication does what comparing all with all does, however the work is cut."""

import itertools
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from data_pipeline.dedup.minhash import MinHash, min_hashes
from data_pipeline.steps.dedup_fuzzy import DedupFuzzy
from data_pipeline.text.words import Words
from tests.helpers.breadth import only
from tests.helpers.duplicates import Item, expected, outcome
from tests.helpers.steps import documents_of, run_global

SETTINGS: list[dict[str, Any]] = [
    {},
    {"prefer": ["c", "b"]},
    {"compare": "within", "remove": [{"like": "c", "from": "a"}, {"like": "b", "from": "a"}]},
    {"compare": "within", "remove": [{"like": "a", "from": "b"}, {"like": "b", "from": "c"}]},
]
KINDS = (("a", False), ("a", True), ("b", False), ("c", False), ("c", True))


def _jaccard(one: str, other: str) -> float:
    sets = [{tuple(words[n : n + 5]) for n in range(len(words) - 4)} for words in (one.split(), other.split())]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def _items(chance: random.Random, bases: list[list[str]], changes: int) -> list[Item]:
    """Texts of all kinds; each is one of `bases`, with so many words changed."""
    items = []
    for source, held_out in KINDS:
        for _ in range(chance.randrange(1, 7)):
            words = list(chance.choice(bases))
            for _ in range(changes):
                words[chance.randrange(len(words))] = f"x{chance.randrange(10**9)}"
            items.append(Item(" ".join(words), source, held_out))
    return items


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", only([0], range(3)))
def test_equal_to_comparing_all_with_all(seed: int, settings: dict[str, Any], tmp_path: Path) -> None:
    chance = random.Random(seed)
    bases = [[f"{base}w{chance.randrange(10**6)}" for _ in range(1000)] for base in range(8)]
    items = _items(chance, bases, changes=1)
    similar = {(a, b): _jaccard(items[a].text, items[b].text) for a in range(len(items)) for b in range(len(items))}
    # Where the similarities lie, the hashes say something else with a probability below 10^-9 per pair.
    method = MinHash(5, 14, 8)
    assert all(value > 0.975 or value < 0.05 for value in similar.values())
    assert 1 - method.chance(0.975) < 1e-9
    assert method.chance(0.05) < 1e-9
    wanted = expected(DedupFuzzy(**settings), items, lambda a, b: similar[a, b] > 0.5)
    assert set(wanted) - {""}
    for keys in (100, 2**20):
        step = DedupFuzzy(**settings, items_per_task=keys)
        assert outcome(step, items, tmp_path / str(keys), chance) == wanted


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", only([0], range(3)))
def test_gpt3_is_equal_to_comparing_all_estimates(seed: int, settings: dict[str, Any], tmp_path: Path) -> None:
    """On words of a small vocabulary, and changed so much that some are candidates and some of these confirmed."""
    chance = random.Random(seed)
    bases = [[f"w{chance.randrange(500)}" for _ in range(200)] for base in range(8)]
    items = _items(chance, bases, changes=10)
    signatures = [_words_signature(item.text) for item in items]

    def alike(a: int, b: int) -> bool:
        equal = signatures[a] == signatures[b]
        confirmed = ((signatures[a] ^ signatures[b]) % 256 == 0)[10:].mean()
        return bool(equal[:10].sum() >= 8 and (confirmed - 1 / 256) / (1 - 1 / 256) >= 0.8)

    wanted = expected(DedupFuzzy(**settings), items, alike)
    assert set(wanted) - {""}
    for keys in (200, 2**20):
        step = DedupFuzzy(preset="gpt3", **settings, items_per_task=keys)
        assert outcome(step, items, tmp_path / str(keys), chance) == wanted


def _words_signature(text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    features = np.unique(Words.of([text]).grams(1)[0])
    return min_hashes(features, np.array([0]), 10 + 128)[:, 0]


def test_a_cluster_chains(tmp_path: Path) -> None:
    """Each text is like the next, the ends are not: one stays. A removed cluster goes with those at its far end."""
    words = [f"w{number}" for number in range(2000)]
    chain = [" ".join(words[20 * step : 20 * step + 1000]) for step in range(51)]
    assert _jaccard(chain[0], chain[1]) > 0.95
    assert _jaccard(chain[0], chain[-1]) == 0
    shuffled = random.Random(0).sample(chain, len(chain))
    kept, stats = run_global(DedupFuzzy(), [documents_of(shuffled)], tmp_path / "one")
    assert [[document.text for document in chunk] for chunk in kept] == [shuffled[:1]]
    step = DedupFuzzy(compare="within", remove=[{"like": "b", "from": "a"}])
    kept, stats = run_global(step, [documents_of(chain), documents_of(chain[-1:])], tmp_path / "two", ["a", "b"])
    assert [len(chunk) for chunk in kept] == [0, 1]
    assert stats.dropped == {"duplicate": 50, "duplicate of b": 1}


def test_words_in_common_do_not_chain_what_is_unlike(tmp_path: Path) -> None:
    """With gpt3's ten hashes alone, chance candidates would unite many of these: they are confirmed by others."""
    chance = random.Random(0)
    common = [f"w{number}" for number in range(60)]
    texts = [" ".join([*common, *(f"x{chance.randrange(10**9)}" for _ in range(30))]) for _ in range(400)]
    method = DedupFuzzy(preset="gpt3")._method
    _, keys, _ = method.of(texts)
    candidates = sum(bool(set(a) & set(b)) for a, b in itertools.combinations(keys.tolist(), 2))
    assert candidates > 400  # of pairs of similarity 0.5
    kept, _ = run_global(DedupFuzzy(preset="gpt3"), [documents_of(texts)], tmp_path)
    assert len(kept[0]) == len(texts)


def test_case_and_punctuation_make_no_difference_and_short_texts_stay(tmp_path: Path) -> None:
    texts = ["One, two: three four five!", "one two three four FIVE", "one two", "one two", "", ""]
    kept, stats = run_global(DedupFuzzy(), [documents_of(texts)], tmp_path)
    assert [document.index for document in kept[0]] == [0, 2, 3, 4, 5]
    assert stats.dropped == {"duplicate": 1}


def test_texts_without_words_move_no_others(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(500)]
    texts = ["", "!", " ".join(words), "something else", " ".join([*words[1:], "more"])]
    kept, _ = run_global(DedupFuzzy(preset="gpt3"), [documents_of(texts)], tmp_path)
    assert [document.index for document in kept[0]] == [0, 1, 2, 3]


def test_any_number_of_workers_and_nothing_twice(tmp_path: Path) -> None:
    chance = random.Random(0)
    bases = [[f"{base}w{place}" for place in range(100)] for base in range(15)]
    chunks = [documents_of([item.text for item in _items(chance, bases, 1)]) for _ in range(3)]
    step = DedupFuzzy(items_per_task=200)
    one = run_global(step, chunks, tmp_path / "one")
    assert run_global(step, chunks, tmp_path / "two", workers=2) == one
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").glob("l*")}  # links and labels
    assert len(made) > 3
    assert run_global(step, chunks, tmp_path / "one") == one  # a second start
    assert {path: path.stat().st_mtime_ns for path in made} == made


@pytest.mark.parametrize("preset", only(["strong"], ["strong", "gpt3"]))
def test_equal_texts_by_the_hundred_thousand(preset: str, tmp_path: Path) -> None:
    chunks = [documents_of(["five words that are same"] * 50_000, f"{number}.jsonl") for number in range(2)]
    start = time.monotonic()
    kept, stats = run_global(DedupFuzzy(preset=preset, items_per_task=2**19), chunks, tmp_path)
    assert time.monotonic() - start < 100  # some seconds; pairs would take hours
    assert [len(chunk) for chunk in kept] == [1, 0]
    assert stats.dropped == {"duplicate": 99_999}


def test_presets_and_what_changes_them() -> None:
    assert DedupFuzzy()._method == MinHash(5, 14, 8)
    assert DedupFuzzy(preset="gpt3")._method == MinHash(1, 10, 1, 8, sketches=True)
    assert DedupFuzzy(preset="gpt3", threshold=0.9)._method == MinHash(1, 10, 1, 9, sketches=True)
    assert DedupFuzzy(ngram=3, bands=20, rows=4, threshold=0.7)._method == MinHash(3, 20, 4, 1, sketches=True)
    with pytest.raises(ValidationError, match=r"16 of bands=20 equal makes 4845 keys .* set a higher threshold"):
        DedupFuzzy(preset="gpt3", bands=20)
