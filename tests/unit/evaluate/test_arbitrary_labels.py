"""The task `arbitrary_labels`: training text holds none of its questions; examples share the labels of the question."""

import re
from collections import Counter

import pytest

from data_pipeline.text.label_lines import (
    CATEGORIES,
    LABELS,
    expected_accuracy,
    label_combinations,
    training_texts,
    word_pairs,
)
from pretrain.evaluate.score_draw import Draw
from pretrain.evaluate.tasks.base import Loaded, Sources
from pretrain.evaluate.tasks.registry import task_named
from tests.unit.evaluate.fakes import ToyTokenizer

TASK = task_named("arbitrary_labels")
LINE = re.compile(r"([a-z]+) ([a-z]+): ([a-z]+)")
CATEGORY_OF = {word: category for words in (CATEGORIES, LABELS) for category, some in words.items() for word in some}


def questions(seed: int = 0) -> Loaded:
    return TASK.load(Sources(None, None, ToyTokenizer(), seed=seed))  # type: ignore[arg-type]


def lines(text: str) -> list[tuple[str, str, str]]:
    found = [LINE.fullmatch(line) for line in text.split("\n")]
    return [(match[1], match[2], match[3]) for match in found if match]


def draw(loaded: Loaded, shots: int) -> Draw:
    return Draw(TASK, loaded, None, shots, 0)


def test_each_word_and_each_label_belongs_to_one_category() -> None:
    names = [word for words in (CATEGORIES, LABELS) for some in words.values() for word in some]
    assert len(set(names)) == len(names) == len(CATEGORY_OF)
    assert list(CATEGORIES) == list(LABELS)


def test_a_training_text_gives_each_category_one_label_of_its_own() -> None:
    for text in training_texts(50):
        found = lines(text)
        assert len(found) == text.count("\n") + 1
        assert all(CATEGORY_OF[a] == CATEGORY_OF[b] == CATEGORY_OF[label] and a != b for a, b, label in found)
        assert len({label for *_, label in found}) == len({CATEGORY_OF[a] for a, *_ in found})


def test_training_texts_are_a_function_of_seed_and_index() -> None:
    assert list(training_texts(5)) == list(training_texts(9))[:5]
    assert list(training_texts(5)) != list(training_texts(5, seed=1))
    assert len(set(training_texts(200))) == 200


@pytest.mark.parametrize("seed", [0, 1])
def test_training_text_holds_no_pair_of_words_and_no_combination_of_labels_of_a_question(seed: int) -> None:
    documents = questions(seed).documents
    asked = {frozenset(document.context.removesuffix(":").split()) for document in documents}
    combinations = {frozenset(document.group.split()) for document in documents}
    assert len(asked) == 4 * 15, "every pair that is held out is asked"
    assert len(combinations) == 20
    for text in training_texts(1000, seed):
        found = lines(text)
        assert asked.isdisjoint(frozenset((a, b)) for a, b, _ in found)
        assert frozenset(label for *_, label in found) not in combinations


def test_what_is_held_out_and_what_is_not_are_all_there_is() -> None:
    for category, words in CATEGORIES.items():
        seen, unseen = (set(word_pairs(category, held_out=held_out)) for held_out in (False, True))
        assert seen.isdisjoint(unseen)
        assert len(seen | unseen) == len(words) * (len(words) - 1)
        assert {word for pair in seen for word in pair} == set(words), "each word is learned"
    seen_labels, unseen_labels = (set(label_combinations(held_out=held_out)) for held_out in (False, True))
    assert seen_labels.isdisjoint(unseen_labels)
    assert len(seen_labels | unseen_labels) == 4**4


def test_a_question_has_one_right_label_of_sixteen() -> None:
    documents = questions().documents
    assert len(set(documents)) == len(documents) == 20 * 4 * 6
    for document in documents:
        targets = [choice.target for choice in document.choices]
        assert len(set(targets)) == 16, "a blind choice is right once in sixteen times"
        assert [targets[index] for index in document.right] == [document.target]
        assert {choice.context for choice in document.choices} == {document.context}
        assert document.target.strip() in document.group.split()
    assert set(Counter(document.group for document in documents).values()) == {24}
    assert [document.group for document in documents] != [document.group for document in questions(1).documents]


def test_examples_have_the_labels_of_the_question_and_not_its_line() -> None:
    loaded = questions()
    for number in range(0, 480, 7):
        shown = draw(loaded, 8).shown(number, seed=0)
        assert len(set(shown)) == 8
        assert number not in shown
        assert {loaded.documents[index].group for index in shown} == {loaded.documents[number].group}
        assert draw(loaded, 1).shown(number, seed=0) == shown[:1]


@pytest.mark.parametrize("shots", [0, 1, 2, 8, 20])
def test_a_reader_of_the_examples_has_the_expected_accuracy(shots: int) -> None:
    loaded = questions()
    right = 0.0
    for number, document in enumerate(loaded.documents):
        labels = {loaded.documents[index].target for index in draw(loaded, shots).shown(number, seed=0)}
        right += 1 if document.target in labels else 1 / 4
    assert right / len(loaded) == pytest.approx(expected_accuracy(shots), abs=0.06)
    assert expected_accuracy(0) == 1 / 4


def test_its_note_says_that_it_is_synthetic_and_what_is_expected() -> None:
    assert TASK.synthetic
    assert TASK.note.startswith("synthetic.")
    assert "25.0% of cases without examples, 41.3% with one and 93.3% with eight" in TASK.note
