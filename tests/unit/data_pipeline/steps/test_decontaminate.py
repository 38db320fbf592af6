"""What is removed, against a removal in plain Python, and at the borders of each setting."""

from __future__ import annotations

import json
import random
import string
import unicodedata
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.build.config import BuildConfig
from data_pipeline.common.tasks import run_tasks
from data_pipeline.executors.processes import ProcessExecutor
from data_pipeline.overlap.gram_index import overlap_report
from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import GatheredChunk
from data_pipeline.steps.decontaminate import Decontaminate
from data_pipeline.steps.registry import make_step
from tests.helpers.breadth import slow
from tests.helpers.many_languages import ARTICLE
from tests.helpers.steps import documents_of, run_global

GRAM = [f"gram{number}" for number in range(13)]
PLANTED = " ".join(GRAM)


def naive_words(text: str) -> list[tuple[str, int, int]]:
    """(word, first character, the one after its last) of ASCII text."""
    found = []
    for white, run in groupby(enumerate(text), lambda place: place[1].isspace()):
        kept = [(place, letter.lower()) for place, letter in run if letter not in string.punctuation]
        if kept and not white:
            found.append(("".join(letter for _, letter in kept), kept[0][0], kept[-1][0] + 1))
    return found


def naive_grams(text: str, n: int) -> list[tuple[tuple[str, ...], int, int]]:
    words = naive_words(text)
    runs = [words[first : first + n] for first in range(len(words) - n + 1)]
    return [(tuple(word for word, _, _ in run), run[0][1], run[-1][2]) for run in runs]


def naive_removal(
    examples: list[str], texts: list[str], settings: dict[str, int]
) -> tuple[list[list[str]], Counter[str]]:
    """The pieces of each text, by marking characters one by one."""
    n, margin = settings["ngram"], settings["window_characters"] // 2
    foreign = {gram for example in examples for gram, _, _ in naive_grams(example, n)}
    held = Counter(gram for text in texts for gram in {gram for gram, _, _ in naive_grams(text, n)})
    removed = {gram for gram in foreign if held[gram] <= settings["most_documents"]}
    kept, dropped = [], Counter[str]()
    for text in texts:
        marks = [False] * len(text)
        for gram, begin, end in naive_grams(text, n):
            if gram in removed:
                for place in range(max(0, begin - margin), min(len(text), end + margin)):
                    marks[place] = True
        runs = [list(run) for _, run in groupby(range(len(text)), marks.__getitem__)]
        pieces = ["".join(text[place] for place in run) for run in runs if not marks[run[0]]]
        if not any(marks):
            kept.append([text])
        elif len(pieces) > settings["most_pieces"]:
            dropped["many pieces"] += 1
            kept.append([])
        else:
            kept.append([piece for piece in pieces if len(piece) >= settings["least_characters"]])
            dropped["short piece"] += len(pieces) - len(kept[-1]) if pieces else 1
    return kept, +dropped


def examples_file(folder: Path, examples: list[str]) -> str:
    path = folder / "task.jsonl"
    path.write_text("".join(json.dumps({"text": example}) + "\n" for example in examples))
    return str(path)


def cleaned(folder: Path, texts: list[str], examples: tuple[str, ...] = (PLANTED,), **settings: Any) -> list[list[str]]:
    """The pieces of each text."""
    step = Decontaminate(against=[examples_file(folder, list(examples))], **settings)
    chunks = [[document] for document in documents_of(texts)]
    kept, _ = run_global(step, chunks, folder / "step")
    return [[document.text for document in chunk] for chunk in kept]


SMALL = {"ngram": 3, "window_characters": 12, "least_characters": 15, "most_pieces": 4, "most_documents": 3}
PAPER = {"ngram": 13, "window_characters": 200, "least_characters": 200, "most_pieces": 10, "most_documents": 10}


@pytest.mark.parametrize(("settings", "length"), [(SMALL, 60), slow((PAPER, 1500))])
def test_pieces_are_those_of_a_removal_in_plain_python(tmp_path: Path, settings: dict[str, int], length: int) -> None:
    draw = random.Random(1)
    vocabulary = ["".join(draw.choice("abcdeXYZ'-") for _ in range(draw.randint(1, 7))) for _ in range(400)]
    ends = [" ", " ", " ", ", ", ".\n", "\n\n", " -- ", '" ']
    examples = [" ".join(draw.choices(vocabulary, k=draw.randint(1, 30))) for _ in range(120)]
    texts = []
    for _ in range(60):
        parts = [draw.choice(vocabulary) + draw.choice(ends) for _ in range(draw.randint(1, length))]
        for _ in range(draw.choice([0, 1, 2, 5, 30])):
            words = draw.choice(examples).upper().split()
            first = draw.randrange(len(words))
            parts.insert(draw.randrange(len(parts) + 1), "! ".join(words[first:]) + " ")
        texts.append("".join(parts))
    expected, dropped = naive_removal(examples, texts, settings)
    assert {"short piece", "many pieces"} <= set(dropped), "the texts ask for both"
    assert any(len(pieces) > 1 for pieces in expected)
    step = Decontaminate(against=[examples_file(tmp_path, examples)], **settings)
    documents = documents_of(texts)
    for cut in (60, 7):
        chunks = [documents[first : first + cut] for first in range(0, 60, cut)]
        kept, stats = run_global(step, chunks, tmp_path / f"cut-{cut}")
        found: list[list[str]] = [[] for _ in texts]
        for document in (document for chunk in kept for document in chunk):
            assert document.part == len(found[document.index])
            found[document.index].append(document.text)
        assert found == expected
        assert stats.dropped == dropped
    first, second = ((tmp_path / f"cut-{cut}" / "overlap.json").read_bytes() for cut in (60, 7))
    assert first == second


def test_a_gram_at_either_end_takes_its_window_on_the_other_side_only(tmp_path: Path) -> None:
    rest = "".join(f"word{number} " for number in range(100))
    begins, ends = f"{PLANTED} {rest}", f"{rest}{PLANTED}"
    assert cleaned(tmp_path, [begins, ends]) == [[begins[len(PLANTED) + 100 :]], [ends[: len(rest) - 100]]]


def test_windows_that_overlap_are_one(tmp_path: Path) -> None:
    rest = "".join(f"word{number} " for number in range(100))
    text = f"{rest}{PLANTED} {'x' * 150} {PLANTED} {rest}"
    end = text.rindex(PLANTED) + len(PLANTED)
    assert cleaned(tmp_path, [text]) == [[text[: len(rest) - 100], text[end + 100 :]]]


@pytest.mark.parametrize(("characters", "kept"), [(199, 0), (200, 1)])
def test_pieces_of_200_characters_are_kept(tmp_path: Path, characters: int, kept: int) -> None:
    text = PLANTED + " " + "y" * (characters + 99)
    assert [len(pieces) for pieces in cleaned(tmp_path, [text])] == [kept]


@pytest.mark.parametrize(("pieces", "kept"), [(10, 10), (11, 0)])
def test_documents_in_more_than_10_pieces_are_dropped(tmp_path: Path, pieces: int, kept: int) -> None:
    between = " " + "z" * 450 + " "
    text = between + "".join(PLANTED + between for _ in range(pieces - 1))
    assert [len(found) for found in cleaned(tmp_path, [text])] == [kept]


@pytest.mark.parametrize(("documents", "removed"), [(10, True), (11, False)])
def test_grams_in_more_than_10_documents_stay(tmp_path: Path, documents: int, removed: bool) -> None:
    texts = [f"{'v' * 300} {PLANTED} {PLANTED} number{number}" for number in range(documents)]
    found = cleaned(tmp_path, texts)
    assert found == [["v" * 201] for _ in texts] if removed else found == [[text] for text in texts]
    facts = overlap_report(tmp_path / "step")
    assert facts["sets"][0]["dirty_examples"] == [0], "the report tells of both"
    assert facts["removed"]["ignored_grams"] == (0 if removed else 1)


def test_nothing_is_done_to_other_documents_however_short(tmp_path: Path) -> None:
    texts = ["short", " ".join(GRAM[:12]), " ".join([*GRAM[:6], "and", *GRAM[6:]])]
    assert cleaned(tmp_path, texts) == [[text] for text in texts]


def test_all_of_a_document_can_go_and_is_accounted_for(tmp_path: Path) -> None:
    step = Decontaminate(against=[examples_file(tmp_path, [PLANTED])])
    kept, stats = run_global(step, [documents_of([PLANTED, "a " * 50 + PLANTED + " b" * 50])], tmp_path / "step")
    assert kept == [[]]
    assert (stats.dropped, stats.changed) == ({"short piece": 2}, {})


def test_pieces_of_pieces_are_numbered_on(tmp_path: Path) -> None:
    long = "w" * 400
    cut = f"{long} {PLANTED} {long}"
    documents = [Document((text,), "a", 0, part) for part, text in enumerate([cut, "x", cut, "y"])]
    step = Decontaminate(against=[examples_file(tmp_path, [PLANTED])])
    kept, stats = run_global(step, [[*documents, Document(("z",), "a", 1)]], tmp_path / "step")
    assert [(document.index, document.part) for document in kept[0]] == [(0, part) for part in range(6)] + [(1, 0)]
    assert stats.changed == {"gram removed": 2}


def test_validation_files_are_cleaned_but_not_counted(tmp_path: Path) -> None:
    step = Decontaminate(against=[examples_file(tmp_path, [PLANTED])], most_documents=0)
    documents = documents_of([f"{'v' * 400} {PLANTED}"])
    (tasks,) = step.prepare(tmp_path)
    run_tasks(tasks, tmp_path / "prepare", ProcessExecutor(1))
    list(step.gather(documents, tmp_path / "facts", tmp_path))
    (tasks,) = step.decide([GatheredChunk(0, "", True, 1, tmp_path / "facts")], tmp_path)
    run_tasks(tasks, tmp_path / "decide", ProcessExecutor(1))
    facts = overlap_report(tmp_path)
    assert (facts["training_documents"], facts["sets"][0]["dirty"]) == (0, 0)
    assert [len(document.text) for document in step.run(documents, StepStats(), 0, tmp_path)] == [301]


def test_sets_may_be_given_by_their_files_alone() -> None:
    given: list[Any] = ["a*.jsonl", ["a*.jsonl"], [{"files": "a*.jsonl"}]]
    assert len({Decontaminate(against=against).model_dump_json() for against in given}) == 1


VIETNAMESE = "Mọi người sinh ra đều được tự do và bình đẳng về phẩm cách và các quyền"
KOREAN = "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다 인간은 이성과 양심을 부여받았다"


@pytest.mark.parametrize(
    "example", [VIETNAMESE, KOREAN, PLANTED.translate({code: code + 0xFEE0 for code in range(33, 127)})]
)
@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC"), ("NFKC", "NFD"), ("NFD", "NFKC")])
def test_an_example_in_another_unicode_form_is_found_and_cut_out(
    tmp_path: Path, example: str, forms: tuple[str, str]
) -> None:
    given, written = (unicodedata.normalize(form, example) for form in forms)
    before, after = (unicodedata.normalize(forms[1], f"{letter} " * 300) for letter in "éü")
    assert cleaned(tmp_path, [f"{before}{written} {after}"], (given,)) == [[before[:-100], after[99:]]]
    assert overlap_report(tmp_path / "step")["sets"][0]["dirty"] == 1


@pytest.mark.parametrize("language", ["zh", "ja", "th", "km", "my", "bo", "am"])
def test_examples_in_any_script_are_cut_out_as_a_whole(tmp_path: Path, language: str) -> None:
    example = ARTICLE[language]
    before, after = (f"{letter} " * 300 for letter in "xy")
    ((first, last),) = cleaned(tmp_path, [f"{before}{example} {after}"], (example,))
    assert first == before[:-100]
    assert last == after[-len(last) :]
    assert len(after) - 100 <= len(last) <= len(after) - 96, "a mark at the end is none of its words"
    part = example[:20]  # as long as a name may be
    (tmp_path / "part").mkdir()
    assert cleaned(tmp_path / "part", [f"{before}{part} {after}"], (example,)) == [[f"{before}{part} {after}"]]


def _behind(repairs: list[Any], folder: Path, example: str, **settings: Any) -> Decontaminate:
    step = {"name": "decontaminate", "against": examples_file(folder, [example]), **settings}
    sources = [{"name": name, "input": "a.txt"} for name in "ab"]
    found = BuildConfig(sources=sources, output=folder, steps=[*repairs, step]).steps[-1]
    assert isinstance(found, Decontaminate)
    return found


def test_examples_are_repaired_as_the_text_was(tmp_path: Path) -> None:
    """A set that was read in a wrong encoding, in a build that repairs that."""
    wrong = VIETNAMESE.encode().decode("latin-1")
    documents = [documents_of([f"{VIETNAMESE} {'x' * 300}"])]
    for number, (repairs, dirty) in enumerate([(["repair"], 1), ([], 0), ([{"name": "repair", "mojibake": False}], 0)]):
        run_global(_behind(repairs, tmp_path, wrong), documents, folder := tmp_path / str(number))
        assert overlap_report(folder)["sets"][0]["dirty"] == dirty


def test_a_repair_of_some_sources_counts_for_these() -> None:
    loose, of_a = {"name": "repair", "normal_form": "none"}, {"name": "repair", "only": ["a"]}
    for only, counts in ((None, {1, 2}), (["a"], {2}), (["b"], {1})):
        step = Decontaminate(against=["a.jsonl"], only=only)
        found = step.following([make_step(loose), make_step("length"), make_step(of_a)])
        assert {len(chain) for chain in found._repairs} == counts
        assert found.model_dump() == step.model_dump(), "the identity of a build has the steps that repair"


def test_a_build_that_compares_in_one_form_is_another() -> None:
    assert Decontaminate(against=["a.jsonl"]).version_of_settings() == 3


def test_a_lambada_passage_planted_in_real_text_is_found_and_removed(tmp_path: Path, real_text: Path) -> None:
    tasks = real_text.parent / "eval" / "lambada_test.jsonl"
    passages = [json.loads(line)["text"] for line in tasks.read_text().splitlines()]
    text = (real_text / "wikitext2_valid.txt").read_text()[:200_000]
    passage = passages[4321].strip(string.punctuation + string.whitespace).upper()
    planted = [text[:50_000], f"{text[50_000:100_000]} {passage} {text[100_000:150_000]}", text[150_000:]]
    step = Decontaminate(against=[str(tasks)])
    kept, stats = run_global(step, [documents_of(planted)], tmp_path)
    pieces = [text[50_000:99_901], text[100_099:150_000]]  # the window takes 99 characters beside each space
    assert [document.text for document in kept[0]] == [planted[0], *pieces, planted[2]]
    assert not stats.dropped
    (found,) = overlap_report(tmp_path)["sets"]
    assert (found["name"], found["ngram"], found["examples"]) == ("lambada_test", 13, 5153)
    assert found["dirty_examples"] == [4321]
