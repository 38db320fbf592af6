"""What answers come to, counted by hand."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pretrain.evaluate.average_draws import average_draws
from pretrain.evaluate.gleu import gleu
from pretrain.evaluate.measures.choice import ChoiceMeasure
from pretrain.evaluate.measures.group_metrics import GROUP_METRICS
from pretrain.evaluate.measures.target import TargetMeasure
from pretrain.evaluate.rouge import rouge
from pretrain.evaluate.tasks.base import Continuation, TaskDocument
from pretrain.evaluate.tasks.normalization import word_f1


def question(*choices: str, right: int = 0) -> TaskDocument:
    return TaskDocument(
        "a question", choices[right], tuple(Continuation("a question", text) for text in choices), (right,)
    )


def test_each_way_of_comparing_choices_prefers_another_one() -> None:
    """The numbers of a choice: log probability, tokens, and the log probability after the bare context."""
    document = question(" é", " abc", " defgh", " i")
    about: Any = SimpleNamespace(
        task=SimpleNamespace(unconditional_context="Answer:", metrics=()), documents=[document]
    )
    scorer: Any = SimpleNamespace(conditional=True)
    measure = ChoiceMeasure(about, scorer)
    numbers = np.array([[-2.0, 1, -1.9], [-6.0, 8, -5.0], [-5.1, 3, -4.9], [-1.9, 1, -0.4]])
    found = measure.outcome(numbers.ravel(), document)
    assert found["chosen"] == {"sum": 3, "per_token": 1, "per_character": 2, "per_byte": 0, "unconditional": 0}
    assert found["right"]["per_byte"]
    assert not found["right"]["per_character"]
    assert np.allclose(measure.numbers(found), numbers.ravel())


def test_a_right_choice_that_is_there_twice_is_right_both_times() -> None:
    """Equal choices score alike, so the first of them is taken, whichever the file calls right."""
    documents = [*[question("is", "is", right=1)] * 6, question("was", "is", "is", right=2)]
    about: Any = SimpleNamespace(
        task=SimpleNamespace(unconditional_context=None, metrics=("positive_f1", "matthews", "macro_f1")),
        documents=documents,
    )
    scorer: Any = SimpleNamespace(conditional=True)
    measure = ChoiceMeasure(about, scorer)
    numbers = np.array([*[[-2.0, 1, 0, -2.0, 1, 0, 0, 0, 0]] * 6, [-9.0, 1, 0, -2.0, 1, 0, -2.0, 1, 0]])
    outcomes = [measure.outcome(row, document) for row, document in zip(numbers, documents, strict=True)]
    found = measure.result(outcomes, documents)
    for way in ("sum", "per_token", "per_character", "per_byte"):
        assert found[f"accuracy_{way}_count"] == 7
    assert found["chance"] == pytest.approx((6 + 2 / 3) / 7)
    assert found["positive_f1"] == found["macro_f1"] == 1, "whichever of the equal ones was taken"
    wrong = measure.outcome(np.array([-1.0, 1, 0, -2.0, 1, 0, -2.0, 1, 0]), documents[-1])
    assert not wrong["right"]["sum"]


def test_the_error_of_a_target_s_perplexity_is_that_of_a_sample() -> None:
    about: Any = None
    measure, sums = TargetMeasure(about, about), np.array([-1.0, -2.0, -4.5])
    outcomes = [{"log_probability": value, "right": False} for value in sums]
    found = measure.result(outcomes, [question("a")] * 3)
    assert found["perplexity"] == pytest.approx(math.exp(2.5))
    deviation = math.sqrt((1.5**2 + 0.5**2 + 2.0**2) / 2)
    assert found["perplexity_stderr"] == pytest.approx(math.exp(2.5) * deviation / math.sqrt(3))


def test_several_draws_are_their_mean_with_the_spread_of_a_sample() -> None:
    results = [{"accuracy": value, "accuracy_stderr": 0.1, "accuracy_count": 3} for value in (0.5, 0.25, 0.75)]
    found = average_draws(results, 2)
    assert found["accuracy"] == 0.5
    assert found["accuracy_spread"] == pytest.approx(0.25)
    assert found["accuracy_by_draw"] == [0.5, 0.25, 0.75]
    assert (found["draws"], found["malformed"], found["accuracy_count"]) == (3, 2, 3)


def test_a_class_that_is_never_right_counts_in_the_macro_f1() -> None:
    """Classes 0 and 1 occur; class 2 is chosen once: F1 of 2/3, 1 and 0."""
    outcomes = [{"chosen": {"sum": chosen}} for chosen in (0, 2, 1, 1)]
    documents = [question("a", "b", "c", right=right) for right in (0, 0, 1, 1)]
    assert GROUP_METRICS["macro_f1"](outcomes, documents)["macro_f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_f1_is_of_the_last_choice_and_matthews_of_both() -> None:
    """Two true and one false of 1; one true and one false of 0."""
    outcomes = [{"chosen": {"sum": chosen}} for chosen in (1, 1, 1, 0, 0)]
    documents = [question("no", "yes", right=right) for right in (1, 1, 0, 0, 1)]
    assert GROUP_METRICS["positive_f1"](outcomes, documents)["positive_f1"] == pytest.approx(4 / 6)
    found = GROUP_METRICS["matthews"](outcomes, documents)
    assert found["matthews"] == pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    assert 0.3 < found["matthews_stderr"] < 0.6
    assert GROUP_METRICS["matthews"](outcomes[:2], documents[:2])["matthews"] == 0, "of one answer and no other"


def test_gleu_counts_against_an_answer_what_it_leaves_uncorrected() -> None:
    """Copying the original is worth nothing: each pair of words that matches is outweighed by one left uncorrected.
    In the longer answer 7 words match and one is left uncorrected; no longer n-gram of the original is left in it."""
    original, right = "I eated tea in town", "I drank tea in town"
    assert gleu([right], [original], [[right]]) == (1, None)
    assert gleu([original], [original], [[right]])[0] == 0
    answer, reference = "we eated tea in town today with Al", "we drank tea in town today with Al"
    counts = [
        (6, 8),
        (5, 7),
        (4, 6),
        (3, 5),
    ]  # seven, five, four, three fit; the one of them left is not of the original
    assert gleu([answer], ["he eated rice"], [[reference]])[0] == pytest.approx(
        math.exp(sum(math.log(fit / all_of_it) for fit, all_of_it in counts) / 4)
    )


def test_gleu_of_several_references_lies_between_those_of_each() -> None:
    answers, originals = (
        ["he has gone home now", "she sings a song well"] * 4,
        ["he have went home", "she sing song"] * 4,
    )
    one, other = "he has gone home", "he has gone home now"
    low = gleu(answers, originals, [[one], ["she sings a song"]] * 4)[0]
    high = gleu(answers, originals, [[other], ["she sings a song well"]] * 4)[0]
    both, error = gleu(answers, originals, [[one, other], ["she sings a song", "she sings a song well"]] * 4)
    assert low < both < high == 1
    assert error is not None
    assert 0 < error < 0.2


def test_rouge_is_against_the_best_reference() -> None:
    found = rouge("rouge1", ["the cats sat", "a dog"], [["the cat sat down", "a bird"], ["no", "one dog here"]])
    assert found.tolist() == pytest.approx([2 * 3 / 7, 2 * 1 / 5])
    lines = [rouge(kind, ["a b c\nd e f"], [["d e f\na b c"]])[0] for kind in ("rougeL", "rougeLsum")]
    assert lines == pytest.approx([0.5, 1])


def test_words_count_as_often_as_they_occur() -> None:
    assert word_f1(["a", "a", "b"], ["a", "c"]) == pytest.approx(2 / 5)
    assert word_f1(["a", "a", "b"], ["a", "a"]) == pytest.approx(4 / 5)
    assert word_f1([], []) == 1
    assert word_f1(["a"], []) == 0
