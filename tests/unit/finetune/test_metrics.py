"""Figures of fine-tuned models: values computed by hand and examples that the libraries publish, what is undefined, and
which figure suits which objective."""

import math
import warnings

import pytest

from pretrain.errors import ConfigError, RunError
from pretrain.finetune.metric_context import MetricContext
from pretrain.finetune.metrics import (
    DEFAULT_METRICS,
    METRICS,
    check_metric,
    compute_metric,
    default_metrics,
    metric_named,
)

NO, YES = "no", "yes"
BINARY = MetricContext(labels=(NO, YES))

# Of 10: 3 of yes found, 1 missed, 2 wrongly yes, 4 rightly no.
PREDICTED = [YES, YES, YES, NO, YES, YES, NO, NO, NO, NO]
EXPECTED = [YES, YES, YES, YES, NO, NO, NO, NO, NO, NO]

BY_HAND = [
    ("accuracy", PREDICTED, EXPECTED, 7 / 10),
    ("f1", PREDICTED, EXPECTED, 2 * 3 / (2 * 3 + 2 + 1)),
    ("macro_f1", PREDICTED, EXPECTED, (2 * 3 / 9 + 2 * 4 / 11) / 2),
    ("matthews", PREDICTED, EXPECTED, (3 * 4 - 2 * 1) / math.sqrt(5 * 4 * 6 * 5)),
    ("accuracy", [["A", "B"], ["A"]], [["A", "A"], ["A"]], 2 / 3),
    ("macro_f1", [["A", "B"], ["A"]], [["A", "A"], ["A"]], (2 * 2 / 5 + 0) / 2),
    ("pearson", [1.0, 2.0, 4.0], [2.0, 3.0, 4.0], 3 / math.sqrt(14 / 3 * 2)),
    ("spearman", [1.0, 20.0, 300.0, 2.0], [1.0, 3.0, 2.0, 4.0], 1 - 6 * (0 + 0 + 4 + 4) / (4 * 15)),
    ("mean_squared_error", [1.0, 2.0], [3.0, 1.0], (4 + 1) / 2),
    # One of two entities found, with one of wrong extent: precision 1/2, recall 1/2.
    ("entity_f1", [["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "O"]], 2 / 3),
    ("entity_f1", [["B-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "B-LOC"]], 1 / 2),
    ("entity_f1", [["B-PER", "E-PER", "S-LOC"]], [["B-PER", "E-PER", "S-PER"]], 1 / 2),
    ("entity_f1", [["B-PER", "I-PER", "S-LOC"]], [["B-PER", "E-PER", "S-LOC"]], 2 / 3),
    ("exact_match", ["The Broncos!", "two"], [["broncos", "Denver Broncos"], ["three"]], 1 / 2),
    # 2 words in common: precision 2/2, recall 2/3 of the better reference; then nothing in common.
    ("f1_of_tokens", ["the Denver Broncos", "two"], [["Colts", "Denver Broncos team"], ["three"]], (0.8 + 0) / 2),
    ("f1_of_tokens", ["x x b b"], ["b c"], 2 * 1 / (4 + 2)),
    ("bleu", ["a b c d e"], [["a b c d e"]], 1.0),
    ("bleu", ["a b c d"], [["a b c d e"]], math.exp(1 - 5 / 4)),
    ("rouge1", ["cats and dogs"], ["cat dog"], 2 * (2 / 3) * 1 / (2 / 3 + 1)),
    ("rouge2", ["one two three"], ["one two four"], 1 / 2),
    ("rougeL", ["a x b c"], [["a b c", "q"]], 2 * (3 / 4) * 1 / (3 / 4 + 1)),
]


@pytest.mark.parametrize(("name", "predicted", "expected", "value"), BY_HAND)
def test_figures_have_the_values_computed_by_hand(name: str, predicted: list, expected: list, value: float) -> None:
    assert compute_metric(name, predicted, expected, BINARY) == pytest.approx(value, rel=1e-12)


PUBLISHED = [
    # scikit-learn's documentation of each function.
    ("accuracy", [0, 2, 1, 3], [0, 1, 2, 3], 0.5, 1e-12),
    ("macro_f1", [0, 2, 1, 0, 0, 1], [0, 1, 2, 0, 1, 2], 0.26, 0.01),
    ("matthews", [+1, -1, +1, +1], [+1, +1, +1, -1], -0.33, 0.01),
    ("mean_squared_error", [2.5, 0.0, 2, 8], [3, -0.5, 2, 7], 0.375, 1e-12),
    # scipy's.
    ("pearson", [10, 9, 2.5, 6, 4, 3, 2], [1, 2, 3, 4, 5, 6, 7], -0.828503883588428, 1e-12),
    ("spearman", [5, 6, 7, 8, 7], [1, 2, 3, 4, 5], 0.8207826816681233, 1e-12),
    # seqeval's README, and of its strict mode.
    (
        "entity_f1",
        [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]],
        [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]],
        0.5,
        1e-12,
    ),
    ("entity_f1", [["I-NP", "I-NP", "O"]], [["B-NP", "I-NP", "O"]], 0.0, 1e-12),
    ("entity_f1", [["O", "B-B", "B-C", "B-A"]], [["B-A", "B-B", "O", "B-A"]], 0.67, 0.01),
    # rouge-score's tests.
    ("rouge1", ["testing"], ["testing one two"], 1 / 2, 1e-12),
    ("rouge2", ["testing one"], ["testing one two"], 2 / 3, 1e-12),
    ("rougeL", ["testing two"], ["testing one two"], 4 / 5, 1e-12),
    ("rouge1", ["text first"], [["first text", "first something"]], 1.0, 1e-12),
    ("rouge2", ["text first"], [["first text", "first something"]], 0.0, 1e-12),
    ("rougeL", ["text first"], [["first text", "first something"]], 0.5, 1e-12),
    # sacrebleu's README.
    (
        "bleu",
        ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."],
        [
            ["The dog bit the man.", "The dog had bit the man."],
            ["It was not unexpected.", "No one was surprised."],
            ["The man bit him first.", "The man had bitten the dog."],
        ],
        0.4853,
        1e-4,
    ),
]


@pytest.mark.parametrize(("name", "predicted", "expected", "value", "within"), PUBLISHED)
def test_figures_have_the_values_that_the_libraries_publish(
    name: str, predicted: list, expected: list, value: float, within: float
) -> None:
    assert compute_metric(name, predicted, expected) == pytest.approx(value, abs=within)


def test_f1_is_that_of_the_last_class_unless_a_setting_names_another() -> None:
    of_no = MetricContext(labels=(NO, YES), positive=NO)
    assert compute_metric("f1", PREDICTED, EXPECTED, of_no) == pytest.approx(2 * 4 / 11)
    assert compute_metric("f1", [1, 0], [1, 1], MetricContext(labels=(0, 1))) == pytest.approx(2 / 3)


UNDEFINED = [
    ("f1", [YES, NO], [NO, NO], None),
    ("f1", [NO, NO], [YES, NO], 0.0),
    ("matthews", [YES, NO], [NO, NO], None),
    ("matthews", [NO, NO], [YES, NO], 0.0),
    ("pearson", [1.0, 2.0], [3.0, 3.0], None),
    ("pearson", [3.0, 3.0], [1.0, 2.0], 0.0),
    ("spearman", [1.0, 2.0], [3.0, 3.0], None),
    ("spearman", [3.0, 3.0], [1.0, 2.0], 0.0),
    ("pearson", [1.0], [1.0], None),
    ("entity_f1", [["B-PER"]], [["O"]], None),
    ("entity_f1", [["O"]], [["B-PER"]], 0.0),
    ("bleu", [""], ["a text"], 0.0),
    ("rougeL", [""], ["a text"], 0.0),
    ("f1_of_tokens", ["the"], ["a"], 1.0),  # neither has a word after normalization
    ("f1_of_tokens", [""], ["word"], 0.0),
    ("exact_match", ["something"], [[]], 0.0),  # a question without an answer is answered by the empty text
    ("exact_match", [""], [[]], 1.0),
]


@pytest.mark.parametrize(("name", "predicted", "expected", "value"), UNDEFINED)
def test_undefined_figures_are_absent_or_0_without_a_warning(
    name: str, predicted: list, expected: list, value: float | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compute_metric(name, predicted, expected, BINARY) == value


def test_predictions_that_cannot_be_judged_are_refused() -> None:
    with pytest.raises(RunError, match="accuracy has 1 predictions for 2 references"):
        compute_metric("accuracy", [YES], [YES, NO])
    with pytest.raises(RunError, match="accuracy has no example"):
        compute_metric("accuracy", [], [])
    for name in ("pearson", "spearman", "mean_squared_error"):
        with pytest.raises(RunError, match="the prediction of example 1 is nan: it must be a finite number"):
            compute_metric(name, [1.0, math.nan, 2.0], [1.0, 2.0, 3.0])
    for name in ("entity_f1", "accuracy"):
        with pytest.raises(RunError, match="example 1 has 1 predicted tags for 2 words"):
            compute_metric(name, [["O"], ["O"]], [["O"], ["B-PER", "O"]])


def test_unknown_and_unsuitable_figures_are_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"there is no figure acuracy: did you mean accuracy\?"):
        metric_named("acuracy")
    with pytest.raises(ConfigError, match="there is no figure qwfp: known are accuracy, f1, macro_f1, "):
        metric_named("qwfp")
    with pytest.raises(
        ConfigError,
        match="accuracy does not suit the objective regression: choose from pearson, spearman, mean_squared_error",
    ):
        check_metric("accuracy", "regression")
    with pytest.raises(ConfigError, match="accuracy does not suit the objective causal: it suits classification, tag"):
        check_metric("accuracy", "causal")
    with pytest.raises(ConfigError, match=r"f1 cannot be that of class maybe, which is none: the classes are no, yes"):
        check_metric("f1", "classification", MetricContext(labels=(NO, YES), positive="maybe"))
    with pytest.raises(ConfigError, match="f1 needs the names of the classes"):
        check_metric("f1", "classification")
    with pytest.raises(ConfigError, match=r"entity_f1 needs tags in BIO or BIOES, .* and 'NOUN' is none: choose accu"):
        check_metric("entity_f1", "tagging", MetricContext(labels=("NOUN", "VERB")))
    for objective, names in DEFAULT_METRICS.items():
        for name in names:
            check_metric(name, objective, MetricContext(labels=("O", "B-PER", "I-PER")))


def test_every_figure_says_what_it_needs_and_which_direction_is_better() -> None:
    assert {name for name, metric in METRICS.items() if not metric.higher_is_better} == {"mean_squared_error"}
    assert all(metric.needs and metric.objectives for metric in METRICS.values())
    assert {objective for metric in METRICS.values() for objective in metric.objectives} == set(DEFAULT_METRICS)


def test_default_figures_of_tags_depend_on_whether_they_are_entities() -> None:
    assert default_metrics("tagging", ("O", "B-PER", "I-PER", "E-PER", "S-PER")) == ("entity_f1", "accuracy")
    assert default_metrics("tagging", ("NOUN", "VERB")) == ("accuracy", "macro_f1")
    assert default_metrics("classification", (NO, YES)) == ("accuracy",)
