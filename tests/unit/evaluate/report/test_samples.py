"""What the page shows of a document: the choices with what they are compared by, and the answer."""

import pytest

from pretrain.evaluate.report.samples import Sample, shown
from tests.unit.evaluate.report.pages import many

RIGHT = "rides it down the hill and waves at the people below."


def _first(task: str, metric: str) -> Sample:
    samples = many().samples[task]
    most = max(samples, key=int)
    return shown(samples[most][0], metric)


@pytest.mark.parametrize(
    ("metric", "compared"),
    [
        ("accuracy_sum", -8.25),
        ("accuracy_per_token", -8.25 / 11),
        ("accuracy_per_character", -8.25 / len(RIGHT)),
        ("accuracy_per_byte", -8.25 / len(RIGHT)),
        ("macro_f1", -8.25),
    ],
)
def test_a_choice_is_shown_with_what_the_metric_compares(metric: str, compared: float) -> None:
    sample = _first("hellaswag", metric)
    right = next(choice for choice in sample.choices if choice.correct)
    assert right.chosen
    assert sample.right
    assert right.text == RIGHT
    assert (right.log_probability, right.compared) == (-8.25, pytest.approx(compared))
    assert sum(choice.chosen for choice in sample.choices) == 1


def test_the_unconditional_way_takes_off_the_probability_without_the_question() -> None:
    sample = _first("arc_easy", "accuracy_unconditional")
    assert {round(choice.compared - choice.log_probability, 6) for choice in sample.choices} == {25.0}


def test_choices_of_unlike_contexts_are_shown_with_what_differs() -> None:
    sample = _first("winograd", "accuracy_sum")
    assert [choice.text for choice in sample.choices] == ["trophy is too big.", "trunk is too big."]
    assert sample.question == "The trophy did not fit into the trunk, because the "
    assert sample.before.count("The trophy did not fit") == 7


def test_a_text_is_shown_with_its_references() -> None:
    sample = _first("coqa", "f1")
    assert sample.answer == "Ann"
    assert sample.notes[0] == "right: Ann · Ann of old"


def test_a_rated_text_is_neither_right_nor_wrong_and_is_cut_in_its_middle() -> None:
    sample = _first("ptb", "word_perplexity")
    assert sample.right is None
    assert sample.notes == ["perplexity 52.37 per token over 2,400 tokens"]
    assert "characters …]" in sample.question
    assert len(sample.question) < 3100
