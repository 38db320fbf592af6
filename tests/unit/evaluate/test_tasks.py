"""Documents: generated ones against OpenAI's files, files that are missing, LAMBADA's form, published results."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.dataset.dataset import Dataset
from pretrain.errors import ConfigError
from pretrain.evaluate.tasks import arithmetic, scrambling
from pretrain.evaluate.tasks.base import Sources, TaskDocument
from pretrain.evaluate.tasks.last_word import passages
from pretrain.evaluate.tasks.published import PUBLISHED, SIZES
from pretrain.evaluate.tasks.registry import HELD_OUT, NAMES, check_names, task_named
from tests.unit.evaluate.fakes import ToyTokenizer

SOURCES = Sources(None, None, ToyTokenizer(), seed=0)  # type: ignore[arg-type]
ARITHMETIC = [task.name for task in arithmetic.TASKS]


def operands(document: TaskDocument) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", document.context)]


def shape(document: TaskDocument) -> str:
    return re.sub(r"\d+", "0", document.context)


@cache
def _generated(name: str) -> Sequence[TaskDocument]:
    return task_named(name).load(SOURCES).documents


@pytest.mark.parametrize("name", ARITHMETIC)
def test_generated_problems_have_the_form_and_distribution_of_the_files(name: str, benchmarks: Path) -> None:
    generated = _generated(name)
    real = task_named(name).load(replace(SOURCES, data_dir=benchmarks)).documents
    assert len(generated) == len(real) == 2000
    assert set(map(shape, generated)) == set(map(shape, real))
    assert len({d.context for d in generated}) == len({d.context for d in real}) == 2000
    for document in real[:200]:  # the rule that makes ours, applied to theirs
        assert answer(document) == document.target
    for ours, theirs in zip(
        np.array(list(map(operands, generated))).T, np.array(list(map(operands, real))).T, strict=True
    ):
        top = 10 ** len(str(theirs.max()))
        assert len(str(ours.max())) == len(str(theirs.max()))
        assert (ours.min() == 0) == (theirs.min() == 0) or top > 100
        bins = np.linspace(0, top, 11)
        a, b = np.histogram(ours, bins)[0], np.histogram(theirs, bins)[0]
        filled = a + b > 0
        chi_squared = ((a - b)[filled] ** 2 / (a + b)[filled]).sum()
        assert chi_squared < 40, "9 degrees of freedom: more than 40 once in 100,000"
    signs = [Counter(map(shape, documents)) for documents in (generated, real)]
    assert all(abs(signs[0][key] - signs[1][key]) < 100 for key in signs[1])


@pytest.mark.parametrize("name", ARITHMETIC)
def test_generated_answers_are_right_and_problems_differ(name: str) -> None:
    generated = _generated(name)
    assert [answer(document) for document in generated] == [document.target for document in generated]
    assert len(set(generated)) == 2000


def answer(document: TaskDocument) -> str:
    problem = document.context.removeprefix("\n\nQ: What is ").removesuffix("?\n\nA:")
    for word, sign in {"plus": "+", "minus": "-", "times": "*"}.items():
        problem = problem.replace(word, sign)
    assert re.fullmatch(r"[\d+*() -]+", problem)
    return f" {eval(problem)}"


def test_generated_problems_are_a_function_of_task_index_and_seed() -> None:
    one = arithmetic.document("arithmetic_3da", 5, 0)
    assert one == arithmetic.document("arithmetic_3da", 5, 0) == task_named("arithmetic_3da").load(SOURCES).documents[5]
    assert one != arithmetic.document("arithmetic_3da", 5, 1)
    assert operands(one) != operands(arithmetic.document("arithmetic_3ds", 5, 0))


def test_every_file_of_openai_that_a_task_names_is_read(benchmarks: Path) -> None:
    sources = replace(SOURCES, data_dir=benchmarks)
    for task in scrambling.TASKS:
        documents = task.load(sources).documents
        assert len(documents) == 10_000
        assert all(d.context.startswith("\n") and d.context.endswith(" =") and d.target[0] == " " for d in documents)
    assert len(task_named("lambada_openai").load(sources).documents) == 5153


def test_lambada_splits_at_the_last_space(data_dir: Path) -> None:
    first = task_named("lambada_openai").load(replace(SOURCES, data_dir=data_dir)).documents[0]
    assert first == TaskDocument(
        "Ann met Ben at the river. There Ben was singing to", " Ann", where="lambada_test.jsonl:1"
    )


def test_a_gzipped_file_in_a_folder_is_found(data_dir: Path) -> None:
    assert task_named("reversed_words").load(replace(SOURCES, data_dir=data_dir)).documents[1] == TaskDocument(
        "\nneb =", " ben", where="reversed_words.jsonl.gz:2"
    )


def test_a_missing_file_is_named_with_the_place_searched(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf"anagrams1 needs mid_word_1_anagrams.jsonl .*not in {re.escape(str(tmp_path))}"
    ):
        task_named("anagrams1").load(replace(SOURCES, data_dir=tmp_path))
    with pytest.raises(ConfigError, match=r"lambada_test\.jsonl .*--data DIR"):
        task_named("lambada_openai").load(SOURCES)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "lambada_test.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match=r"lambada_test\.jsonl\.gz is damaged \(.*fetch or compress it again"):
        task_named("lambada_openai").load(replace(SOURCES, data_dir=tmp_path))


def test_bad_lines_are_told_with_their_numbers_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "lambada_test.jsonl").write_text(
        '{"text": "a b"}\n\n{"text": "c\n{"text": ["d e"]}\n{"story": "f"}\n'
        '{"text": "word"}\n{"text": "ends "}\n{"text": "g h"}'
    )
    loaded = task_named("lambada_openai").load(replace(SOURCES, data_dir=tmp_path))
    assert [document.target for document in loaded.documents] == [" b", " h"]
    told = {problem.where: problem.what for problem in loaded.problems}
    assert list(told) == [f"lambada_test.jsonl:{line}" for line in (3, 4, 5, 6, 7)]
    assert "it is not JSON" in told["lambada_test.jsonl:3"]
    assert told["lambada_test.jsonl:4"] == "'text' is not text but list"
    assert told["lambada_test.jsonl:5"] == "it has no 'text', only story"
    assert "has no space" in told["lambada_test.jsonl:6"]
    assert "ends in a space" in told["lambada_test.jsonl:7"]


def test_an_openai_line_without_an_answer_is_told(tmp_path: Path) -> None:
    (tmp_path / "reversed_words.jsonl").write_text(
        '{"context": "a =", "completion": " a"}\n{"context": "b =", "completion": ""}\n'
    )
    loaded = task_named("reversed_words").load(replace(SOURCES, data_dir=tmp_path))
    assert (len(loaded.documents), loaded.problems[0].what) == (1, "its 'completion' is empty")


def test_an_unknown_task_names_its_nearest_match_and_all_tasks() -> None:
    check_names(NAMES)
    with pytest.raises(
        ConfigError, match=r"unknown task 'lambda_openai': did you mean lambada_openai.*heldout, .*reversed_words"
    ):
        check_names(["heldout", "lambda_openai"])


def test_passages_are_whole_sentences_of_a_paragraph_up_to_the_last_word() -> None:
    long = "It was a long day and nobody knew what to do with all of the apples"
    assert list(passages(f"Short one.\n{long}! Left over.\n\n{long} 12.\n\n{long}.")) == [f"Short one.\n{long}", long]
    endless = " ".join([long] * 4)
    assert list(passages(f"{endless}. {long}?")) == [long], "one that is too long is left out, the next one is not"


def test_last_word_asks_about_held_out_documents_only(dataset: Dataset) -> None:
    tokenizer = dataset.tokenizer()
    found = task_named("last_word").load(Sources(None, dataset, tokenizer, seed=5)).documents
    texts = [tokenizer.decode(tokens) for _, tokens in dataset.documents("validation")]
    assert len(found) > 10
    for document in found:
        assert any(document.context + document.target in text for text in texts)
        assert re.fullmatch(r" [a-z]+", document.target)
    assert found == task_named("last_word").load(Sources(None, dataset, tokenizer, seed=6)).documents, (
        "the seed draws shots only"
    )


def test_published_results_are_the_papers_table(benchmarks: Path) -> None:
    rows = (benchmarks.parent / "reference" / "gpt3_table_h1.txt").read_text().splitlines()
    table = [row for row in rows if not row.startswith("#")]
    theirs = Counter(tuple(float(x) for s in row.split(" | ")[1:] for x in s.split()) for row in table)
    ours = Counter((*row.zero, *row.one, *row.few) for row in PUBLISHED.values())
    assert len(PUBLISHED) == len(table) - 2 == 43
    left = {
        row.split(" | ")[0]
        for row in table
        if tuple(float(x) for s in row.split(" | ")[1:] for x in s.split()) not in ours
    }
    assert left == {"SuperGLUE avg dev 32", "ReCoRD f1 dev 32"}, "of which we have no such metric"
    assert ours <= theirs
    shots = Counter(int(row.split(" | ")[0].split()[-1]) for row in table)
    shots.subtract(row.few_shots for row in PUBLISHED.values())
    assert {k: n for k, n in shots.items() if n} == {32: 2}
    lambada = PUBLISHED["lambada_openai", "accuracy"]
    assert (lambada.at(0)[-1], lambada.at(1)[-1], lambada.at(8)[-1], lambada.few_shots) == (76.2, 72.5, 86.4, 15)
    assert json.dumps(PUBLISHED["reversed_words", "exact_match"].at(1)[-1]) == "0.48"
    assert PUBLISHED["hellaswag", "accuracy_per_token"].at(20)[-1] == 79.3
    assert PUBLISHED["race_middle", "accuracy_unconditional"].at(0)[-1] == 58.4


def test_published_results_are_of_tasks_at_their_shots() -> None:
    for (name, metric), row in PUBLISHED.items():
        task = task_named(name)
        assert row.few_shots == task.paper_shots
        assert len(row.zero) == len(row.one) == len(row.few) == len(SIZES)
        other = {"lambada_openai": "perplexity", "squadv2": "exact_match"}.get(name)
        assert metric in (task.metric, other)


def test_every_task_says_what_it_is() -> None:
    for name in NAMES:
        if name != HELD_OUT:
            task = task_named(name)
            assert task.name == name
            assert task.title
            assert task.source
