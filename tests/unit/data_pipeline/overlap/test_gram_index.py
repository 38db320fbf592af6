"""The index of evaluation grams and its report, against sets of strings and the paper's table C.1."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.overlap.examples import EvaluationSet
from data_pipeline.overlap.gram_index import GramIndex, example_hashes, gram_words, overlap_report, report_ngram
from data_pipeline.text.normal_form import comparable
from data_pipeline.text.words import Words
from tests.helpers.many_languages import ARTICLE


def written_set(path: Path, texts: list[str]) -> EvaluationSet:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return EvaluationSet(files=str(path))


def found_in(index: GramIndex, texts: list[str]) -> np.ndarray[Any, Any]:
    found = np.zeros(len(index.hashes), np.bool_)
    for length in index.lengths:
        found[index.lookup(Words.of(texts), length)[0]] = True
    return found


def grams(words: list[str], n: int) -> set[tuple[str, ...]]:
    return {tuple(words[first : first + n]) for first in range(len(words) - n + 1)}


def naive_report(examples: list[str], texts: list[str], least: int) -> tuple[int, int, list[int]]:
    """(N, short examples, dirty examples) with strings and sets."""
    cut = [example.split() for example in examples]
    lengths = sorted(map(len, cut))
    n = min(13, max(least, lengths[(len(lengths) - 1) * 5 // 100]))
    dirty = []
    for number, words in enumerate(cut):
        own = min(n, len(words))
        if own >= least and any(grams(words, own) & grams(text.split(), own) for text in texts):
            dirty.append(number)
    return n, sum(length < least for length in lengths), dirty


@pytest.mark.parametrize(("shortest", "least"), [(1, 8), (9, 8), (11, 8), (20, 8), (2, 1)])
def test_the_report_of_several_sets_is_that_of_strings_and_sets(tmp_path: Path, shortest: int, least: int) -> None:
    draw = random.Random(shortest)
    vocabulary = [f"w{number}" for number in range(300)]
    sets = [
        [draw.choices(vocabulary, k=draw.randint(low, 30)) for _ in range(n)] for low, n in ((shortest, 90), (13, 40))
    ]
    sets[1][5] = sets[0][7]
    leaked = [words[draw.randint(0, 3) :] for words in [*sets[0][:40], *sets[1][:10]]]
    texts = [" ".join([*draw.choices(vocabulary, k=20), *words]) for words in leaked]
    examples = [[" ".join(words) for words in one] for one in sets]
    given = [written_set(tmp_path / f"set{number}.jsonl", one) for number, one in enumerate(examples)]
    index = GramIndex.of([one.model_copy(update={"least_words": least}) for one in given], 13)
    for facts, one in zip(index.report(found_in(index, texts)), examples, strict=True):
        n, short, dirty = naive_report(one, texts, least)
        assert (facts["ngram"], facts["short"], facts["dirty_examples"]) == (n, short, dirty)
        assert (facts["dirty"], facts["dirty_fraction"]) == (len(dirty), len(dirty) / len(one))
        assert 0 < len(dirty) < len(one)


def test_lookup_finds_each_place_of_each_gram_and_no_other(tmp_path: Path) -> None:
    draw = random.Random(3)
    examples = [" ".join(draw.choices("abcdefgh", k=20)) for _ in range(50)]
    index = GramIndex.of([written_set(tmp_path / "a.jsonl", examples)], 4)
    known = set().union(*(grams(example.split(), 4) for example in examples))
    texts = [" ".join(draw.choices("abcdefghi", k=500)), "a b", " ".join(draw.choices("abcdefghi", k=500))]
    words = [text.split() for text in texts]
    expected, first = [], 0
    for one in words:
        expected += [first + place for place in range(len(one) - 3) if tuple(one[place : place + 4]) in known]
        first += len(one)
    number, places = index.lookup(Words.of(texts), 4)
    assert places.tolist() == expected
    assert 100 < len(expected) < 900
    everything = [word for one in words for word in one]
    for gram, place in zip(number, places, strict=True):
        assert index.hashes[gram] == Words.of([" ".join(everything[place : place + 4])]).grams(4)[0][0]
    assert index.removable[number].all()
    assert int(index.removable.sum()) == len(known)


@pytest.mark.parametrize(("n", "examples"), [(2, "cycle_letters_in_word"), (2, "mid_word_1_anagrams"),
    (2, "mid_word_2_anagrams"), (2, "reversed_words"), (7, "random_insertion_in_word")])  # fmt: skip
def test_n_of_the_scrambling_tasks_is_the_paper_s(real_text: Path, n: int, examples: str) -> None:
    """Table C.1 counts what punctuation separates as words, so the words here are not those of the index."""
    path = real_text.parent / "eval" / "gpt3_synthetic" / f"{examples}.jsonl.gz"
    ((name, texts),) = EvaluationSet(files=str(path)).sets()
    assert (name, len(texts)) == (examples, 10_000)
    assert report_ngram(np.array([len(re.findall(r"\w+", text)) for text in texts]), least=1) == n
    assert report_ngram(np.array([len(re.findall(r"\w+", text)) for text in texts]), least=8) == 8


def test_examples_have_one_hash_exactly_if_their_words_are_the_same_in_the_same_order() -> None:
    draw = random.Random(7)
    texts = [
        " ".join(draw.choices(["ab", "Ab!", "a", "b", "c-d", "cd", "..."], k=draw.randint(0, 4))) for _ in range(2000)
    ]
    words = [tuple(filter(None, (re.sub(r"[.!-]", "", word).lower() for word in text.split()))) for text in texts]
    hashes = example_hashes(texts).tolist()
    assert len(set(words)) > 50
    assert len(set(words)) == len(set(hashes)) == len(set(zip(words, hashes, strict=True)))
    assert hashes[::100] == [int(example_hashes([text])[0]) for text in texts[::100]], "alone as among others"
    assert example_hashes([]).tolist() == []
    assert len(set(example_hashes(["vi\u1ec7t", "vie\u0323\u0302t", "VI\u00ca\u0323T"]).tolist())) == 1
    assert example_hashes(["To be, or not to be"])[0] == 0xDF77A6E8803F9E17, "as in every process and version"


def test_an_index_is_the_same_file_each_time_and_after_it_was_read(tmp_path: Path) -> None:
    given = [written_set(tmp_path / f"{name}.jsonl", [f"{name} {n} " * 9 for n in range(20)]) for name in "ab"]
    for name in ("1.npz", "2.npz"):
        GramIndex.of(given, 13).save(tmp_path / name)
    read = GramIndex.load(tmp_path / "1.npz")
    read.save(tmp_path / "3.npz")
    assert len({(tmp_path / f"{number}.npz").read_bytes() for number in (1, 2, 3)}) == 1
    assert read.digest == GramIndex.of(given, 13).digest != GramIndex.of(given[:1], 13).digest
    assert found_in(read, ["a 3 " * 9]).any()


def test_a_file_that_is_no_index_is_an_error_that_names_it(tmp_path: Path) -> None:
    index = GramIndex.of([written_set(tmp_path / "a.jsonl", ["a b c " * 9])], 13)
    index.save(tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    for bad in (b"", b"text", whole[: len(whole) // 2]):
        (tmp_path / "bad.npz").write_bytes(bad)
        with pytest.raises(DataError, match=re.escape(str(tmp_path / "bad.npz"))):
            GramIndex.load(tmp_path / "bad.npz")
    with np.load(tmp_path / "whole.npz") as file:
        arrays = dict(file)
    arrays["hashes"] = arrays["hashes"] + np.uint64(1)
    np.savez(tmp_path / "other.npz", allow_pickle=False, **arrays)
    with pytest.raises(DataError, match="not what was written"):
        GramIndex.load(tmp_path / "other.npz")
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "overlap.json"))):
        overlap_report(tmp_path)


def test_sets_without_words_find_nothing(tmp_path: Path) -> None:
    index = GramIndex.of([written_set(tmp_path / "a.jsonl", ["...", "few words"])], 13)
    assert not found_in(index, ["few words and more " * 20]).any()
    (found,) = index.report(np.zeros(0, np.bool_))
    counts = {"ngram": 8, "examples": 2, "short": 2, "dirty": 0, "dirty_fraction": 0.0, "dirty_examples": []}
    assert {key: found[key] for key in counts} == counts


def test_examples_are_all_strings_of_a_line_or_the_fields_named(tmp_path: Path) -> None:
    line = {"q": "What?", "n": 3, "choices": [{"a": "one"}, {"a": "two", "b": ["three", True]}], "answer": "one"}
    path = tmp_path / "task.v2.jsonl.gz"
    path.write_bytes(gzip.compress(f"{json.dumps(line)}\n\n{json.dumps({'q': 'Who?', 'answer': ''})}\n".encode()))
    assert EvaluationSet(files=str(path)).sets() == [("task.v2", ["What?\none\ntwo\nthree\none", "Who?\n"])]
    named = EvaluationSet(name="mine", files=str(path), fields=["answer", "q"])
    assert named.sets() == [("mine", ["one\nWhat?", "\nWho?"])]
    with pytest.raises(DataError, match="line 3: has no field 'choices'"):
        EvaluationSet(files=str(path), fields=["q", "choices"]).sets()


def test_files_are_sets_of_their_own_unless_they_are_given_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "b.jsonl").write_text('"second"\n["third"]\n')
    assert EvaluationSet(files=str(tmp_path)).sets() == [("a", ["first"]), ("b", ["second", "third"])]
    assert EvaluationSet(name="ab", files=str(tmp_path)).sets() == [("ab", ["first", "second", "third"])]
    with pytest.raises(DataError, match="Two evaluation sets are called a;"):
        GramIndex.of([EvaluationSet(files=str(tmp_path)), EvaluationSet(name="a", files=str(tmp_path))], 13)


@pytest.mark.parametrize(
    ("language", "letters"), [("zh", 20), ("ja", 26), ("th", 52), ("km", 52), ("hi", 13), ("bo", 13)]
)
def test_grams_of_scripts_without_spaces_have_the_letters_of_as_many_words(language: str, letters: int) -> None:
    """13 letters of Thai are some three words, which many a text holds."""
    index = GramIndex.from_texts([("quiz", [ARTICLE[language] * 2], 8)], 13)
    assert index.removable_lengths[-1] == letters
    for length, dirty in ((letters, 1), (letters - 1, 0)):
        words = gram_words([ARTICLE[language]])
        text = comparable(ARTICLE[language])[words.begins[2] : words.ends[1 + length]]
        found = np.zeros(len(index.hashes), np.bool_)
        for each in index.lengths:
            found[index.lookup(gram_words([text]), each)[0]] = True
        assert index.report(found)[0]["dirty"] == dirty
