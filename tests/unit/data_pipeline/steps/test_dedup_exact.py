"""Exact deduplication does what comparing all with all does, however the work is cut."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from data_pipeline.errors import DataError
from data_pipeline.reading.documents import Document
from data_pipeline.steps.dedup_exact import DedupExact
from data_pipeline.text.words import Words
from tests.helpers.duplicates import Item, expected, outcome
from tests.helpers.steps import documents_of, run_global

SETTINGS: list[dict[str, Any]] = [
    {},
    {"prefer": ["c", "b"]},
    {"compare": "within"},
    {"compare": "within", "remove": [{"like": "c", "from": "a"}, {"like": "b", "from": "a"}]},
    {"compare": "within", "remove": [{"like": "a", "from": "b"}, {"like": "b", "from": "c"}], "normalize": "words"},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_comparing_all_with_all(seed: int, settings: dict[str, Any], tmp_path: Path) -> None:
    chance = random.Random(seed)
    items = []
    for source, held_out in (("a", False), ("a", True), ("b", False), ("c", False), ("c", True)):
        texts = [
            f"text {chance.randrange(14)}{chance.choice('.!') * (seed % 2)}" for _ in range(chance.randrange(1, 9))
        ]
        items += [Item(text, source, held_out) for text in texts]
    words = settings.get("normalize") == "words"

    def alike(a: int, b: int) -> bool:
        one, other = (re.findall("[a-z0-9]+", item.text) if words else item.text for item in (items[a], items[b]))
        return one == other

    step = DedupExact(**settings)
    wanted = expected(step, items, alike)
    assert set(wanted) - {""}
    for keys in (9, 2**20):
        step = DedupExact(**settings, items_per_task=keys)
        assert outcome(step, items, tmp_path / f"{keys}", chance) == wanted


def test_some_copy_always_stays(tmp_path: Path) -> None:
    chance = random.Random(0)
    removals = [{"like": like, "from": source} for like, source in ("ab", "ac", "bc")]
    kinds = [(source, held_out) for source in "abc" for held_out in (False, True)]
    for number in range(10):
        items = [Item(f"text {chance.randrange(8)}", *chance.choice(kinds)) for _ in range(30)]
        reasons = outcome(DedupExact(compare="within", remove=removals), items, tmp_path / str(number), chance)
        stay = [item for item, reason in zip(items, reasons, strict=True) if not reason]
        assert {item.text for item in stay} == {item.text for item in items}
        held_out = {item.text for item in items if item.held_out}
        assert not held_out & {item.text for item in stay if not item.held_out}


def test_any_number_of_workers_and_nothing_twice(tmp_path: Path) -> None:
    chance = random.Random(0)
    chunks = [documents_of([f"text {chance.randrange(40)}" for _ in range(30)], f"{n}.jsonl") for n in range(3)]
    step = DedupExact(items_per_task=8)
    one = run_global(step, chunks, tmp_path / "one")
    assert run_global(step, chunks, tmp_path / "two", workers=2) == one
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").glob("links-*")}
    assert len(made) > 3
    assert run_global(step, chunks, tmp_path / "one") == one  # a second start
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_pairs_count_as_two_texts(tmp_path: Path) -> None:
    pairs = [("a b", "c"), ("a", "b c"), ("a b", "c"), ("c", "a b")]
    documents = [Document(pair, "a.jsonl", number) for number, pair in enumerate(pairs)]
    ((*kept,),), stats = run_global(DedupExact(), [documents], tmp_path)
    assert [document.index for document in kept] == [0, 1, 3]
    assert stats.dropped == {"duplicate": 1}
    assert stats.samples["duplicate"][0]["text"] == "a b | c"


def test_words_count_in_their_order(tmp_path: Path) -> None:
    texts = [
        "One, two: three!",
        "three two one",
        "one two three",
        "one two three three",
        "one-two three",
        "onetwo three",
    ]
    kept, _ = run_global(DedupExact(normalize="words"), [documents_of(texts)], tmp_path)
    assert [document.index for document in kept[0]] == [0, 1, 3, 4]


@pytest.mark.parametrize("by", ["document", "paragraph"])
def test_texts_without_words_are_compared_as_they_are(by: str, tmp_path: Path) -> None:
    texts = ["...", "----", "...", "!?", "A b", "-----", "a b!", "----", "。。。"]
    step = DedupExact(by=by, normalize="words", least_characters=1)
    kept, stats = run_global(step, [documents_of(texts[:5]), documents_of(texts[5:])], tmp_path)
    assert [document.text for chunk in kept for document in chunk] == ["...", "----", "!?", "A b", "-----", "。。。"]
    assert stats.dropped == {"duplicate": 3}


def test_only_comparing_words_makes_another_build() -> None:
    assert DedupExact(normalize="words").version_of_settings() == 3
    assert DedupExact().version_of_settings() == 1  # datasets that were built before keep their identity


@pytest.mark.parametrize("settings", [{"by": "paragraph"}, {"normalize": "words"}])
def test_a_pair_is_refused_where_texts_are_cut(settings: dict[str, Any], tmp_path: Path) -> None:
    step = DedupExact(**settings)
    with pytest.raises(
        DataError, match=r"^a.jsonl: step dedup_exact met a pair .* set by=document and normalize=none$"
    ):
        run_global(step, [[Document(("a", "b"), "a.jsonl", 0)]], tmp_path)


def _without_paragraphs(texts: list[str], least: int, words: bool) -> list[str]:
    seen: set[Any] = set()
    results = []
    for text in texts:
        kept = ""
        for match in re.finditer(r"([^\n]*)(\n*)", text):
            piece = match[1]
            key = tuple(Words.of([piece]).hashes.tolist()) if words else piece
            if len(piece) < least or key not in seen:
                kept += match[0]
            if len(piece) >= least:
                seen.add(key)
        if not text.endswith("\n") and len(kept) < len(text):
            kept = kept.rstrip("\n")
        if kept.strip() or kept == text:
            results.append(kept)
    return results


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_paragraphs(seed: int, words: bool, tmp_path: Path) -> None:
    chance = random.Random(seed)
    paragraphs = [*(f"{chance.choice(['One', 'one'])} long paragraph {n % 12}." for n in range(24)), "short", "", " "]
    texts = [
        "".join(chance.choice(paragraphs) + "\n" * chance.randrange(1, 3) for _ in range(chance.randrange(1, 6)))[
            : -1 if chance.random() < 0.5 else None
        ]
        for _ in range(20)
    ]
    step = DedupExact(
        by="paragraph", normalize="words" if words else "none", least_characters=10, items_per_task=10 + 20 * seed
    )
    documents = documents_of(texts)
    cut = chance.randrange(1, 20)
    kept, stats = run_global(step, [documents[:cut], documents[cut:]], tmp_path)
    found = [document.text for chunk in kept for document in chunk]
    assert [text.rstrip("\n") for text in found] == [
        text.rstrip("\n") for text in _without_paragraphs(texts, 10, words)
    ]
    assert stats.changed["paragraph: duplicate"] > 0
    assert len(found) + stats.dropped["duplicate"] == len(texts)


def test_newlines_go_with_the_paragraph_before_them(tmp_path: Path) -> None:
    texts = ["first one\n\nsecond one\nend", "first one\n\nnew\n\nsecond one", "second one\nlast line\n", "first one"]
    ((*kept,),), stats = run_global(DedupExact(by="paragraph", least_characters=5), [documents_of(texts)], tmp_path)
    assert [document.text for document in kept] == [texts[0], "new", "last line\n"]
    assert stats.changed == {"paragraph: duplicate": 3}
    assert stats.dropped == {"duplicate": 1}


@pytest.mark.slow
def test_equal_texts_by_the_hundred_thousand(tmp_path: Path) -> None:
    chunks = [documents_of(["the same"] * 50_000), documents_of(["The same!", *["the same"] * 49_999])]
    kept, stats = run_global(DedupExact(items_per_task=2**12), chunks, tmp_path)
    assert [len(chunk) for chunk in kept] == [1, 1]
    assert stats.dropped["duplicate"] == 99_998


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"remove": [{"like": "a", "from": "b"}]}, "remove is for compare=within"),
        ({"compare": "within", "prefer": ["a"]}, "prefer is for compare=all"),
        ({"compare": "within", "remove": [{"like": "a", "from": "b"}, {"like": "b", "from": "a"}]}, "in a circle"),
        ({"compare": "within", "remove": [{"like": "a", "from": "a"}]}, "in a circle"),
    ],
)
def test_settings_that_contradict(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DedupExact(**settings)


def test_unknown_source(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dedup_exact names a source 'web', but it works on a, b: correct the name"):
        run_global(DedupExact(prefer=["web"]), [documents_of(["x"]), documents_of(["y"])], tmp_path, ["a", "b"])


def test_equal_words_are_equal_in_every_script_and_form(tmp_path: Path) -> None:
    """Composed or not, of any width and case, behind Tibetan's and Ethiopic's signs between words."""
    pairs = [("Tiếng Việt", "TIE\u0302\u0301NG VIE\u0323\u0302T"), ("カード１", "ｶｰﾄﾞ1"), ("IRMAK İÇİ", "ırmak içi"),
             ("བོད་ཡིག", "བོད ཡིག"), ("ሰላም፡እሺ", "ሰላም እሺ"), ("ΟΔΟΣ", "οδος")]  # fmt: skip
    step = DedupExact(normalize="words")
    kept, _ = run_global(step, [documents_of([text for pair in pairs for text in pair])], tmp_path)
    assert [document.text for document in kept[0]] == [first for first, _ in pairs]
