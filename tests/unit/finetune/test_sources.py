"""A fine-tuned model on several sources: figures of each, and their means."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pretrain.errors import ConfigError
from pretrain.evaluate.heldout import HeldOut
from pretrain.finetune.answers import RowAnswer
from pretrain.finetune.eval_rows import figure_lines
from pretrain.finetune.judge import AnsweredSplit, MostFrequent, _most_frequent
from pretrain.finetune.report.write import FinetuneFacts, write_report
from pretrain.finetune.sources import JudgedSplit, figures_by_source
from tests.helpers.small_configs import config


def _answered(figures: Mapping[str, float | None], loss_sum: float, rows: int, *notes: str) -> AnsweredSplit:
    return AnsweredSplit(
        heldout=HeldOut(loss_sum=loss_sum, token_count=rows, words=None, text_bytes=None),
        figures=figures,
        predictions=[RowAnswer(number=n, predicted="a", expected="a") for n in range(rows)],
        notes=notes,
    )


def test_several_sources_have_figures_each_and_their_means() -> None:
    cola = _answered({"accuracy": 0.5, "matthews": None}, 6.0, 2, "some are cut")
    sst2 = _answered({"accuracy": 1.0, "matthews": 0.5}, 3.0, 4)
    judged = JudgedSplit(by_source={"cola": cola, "sst2": sst2}, several=True)
    assert judged.figures == {
        "accuracy": 0.75,
        "matthews": None,
        "cola/accuracy": 0.5,
        "cola/matthews": None,
        "sst2/accuracy": 1.0,
        "sst2/matthews": 0.5,
    }
    assert judged.heldout.loss == pytest.approx(9 / 6), "each row counts once"
    assert judged.heldout.by_source == [(6.0, 2), (3.0, 4)]
    assert judged.notes == ["cola: some are cut"]
    assert figure_lines({"validation": judged}) == [
        "cola, validation (2 rows): accuracy 0.5000, matthews undefined",
        "sst2, validation (4 rows): accuracy 1.0000, matthews 0.5000",
        "mean of 2 sources, validation: accuracy 0.7500, matthews undefined",
    ]


def test_the_only_source_has_its_figures_under_their_own_names() -> None:
    judged = JudgedSplit(by_source={"cola": _answered({"accuracy": 0.5}, 6.0, 2, "some are cut")}, several=False)
    assert judged.figures == {"accuracy": 0.5}
    assert judged.notes == ["some are cut"]
    assert figure_lines({"test": judged}) == ["test (2 rows): accuracy 0.5000"]


def test_a_source_may_have_figures_of_its_own() -> None:
    """There is a mean of those only that all have."""
    cola = _answered({"accuracy": 0.5, "matthews": 0.25}, 6.0, 2)
    sst2 = _answered({"accuracy": 1.0}, 3.0, 4)
    judged = JudgedSplit(by_source={"cola": cola, "sst2": sst2}, several=True)
    assert judged.figures == {"accuracy": 0.75, "cola/accuracy": 0.5, "cola/matthews": 0.25, "sst2/accuracy": 1.0}
    assert figure_lines({"validation": judged}) == [
        "cola, validation (2 rows): accuracy 0.5000, matthews 0.2500",
        "sst2, validation (4 rows): accuracy 1.0000",
        "mean of 2 sources, validation: accuracy 0.7500",
    ]


def test_without_a_common_figure_there_is_no_mean() -> None:
    by_source = {"cola": _answered({"matthews": 0.25}, 6.0, 2), "sst2": _answered({"accuracy": 1.0}, 3.0, 4)}
    judged = JudgedSplit(by_source=by_source, several=True)
    assert judged.figures == {"cola/matthews": 0.25, "sst2/accuracy": 1.0}
    assert len(figure_lines({"validation": judged})) == 2


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ([], {"cola": [], "sst2": []}),
        (["accuracy"], {"cola": ["accuracy"], "sst2": ["accuracy"]}),
        (["cola/matthews", "accuracy"], {"cola": ["accuracy", "matthews"], "sst2": ["accuracy"]}),
        (["cola/matthews"], {"cola": ["matthews"], "sst2": []}),
    ],
)
def test_a_figure_is_of_all_sources_or_of_one(figures: Sequence[str], expected: Mapping[str, list[str]]) -> None:
    assert figures_by_source(figures, ["cola", "sst2"]) == expected


@pytest.mark.parametrize(
    ("sources", "sentence"),
    [
        (["cola", "sst2"], "evaluate.figures has coal/matthews, and the run has no such source: did you mean cola/mat"),
        (["coal"], "the run has one source: name the figure matthews$"),
    ],
)
def test_a_figure_of_no_source_is_refused(sources: Sequence[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        figures_by_source(["coal/matthews"], sources)


def test_accuracy_stands_beside_that_of_the_most_frequent_class() -> None:
    found = _most_frequent(["b", "a", "a", "b", "c"])
    assert found == MostFrequent(label="a", accuracy=0.4)
    assert _most_frequent([["O", "O"], ["O", "B"]]) == MostFrequent(label="O", accuracy=0.75)
    assert _most_frequent([]) is None
    answered = replace(_answered({"accuracy": 0.5}, 6.0, 2), most_frequent=found)
    judged = JudgedSplit(by_source={"cola": answered}, several=False)
    assert figure_lines({"test": judged}) == ["test (2 rows): accuracy 0.5000 (always a: accuracy 0.4000)"]


@pytest.mark.parametrize(("known", "said"), [(None, 0), (MostFrequent(label="a", accuracy=0.4), 1)])
def test_the_page_has_the_most_frequent_class_and_how_figures_were_computed_where_there_is_one(
    known: MostFrequent | None, said: int, tmp_path: Path
) -> None:
    how = {"notes": ["1 of 2 rows expect Thai"], "how_computed": {"bleu": "tok:zh"}} if known else {}
    answered = replace(_answered({"accuracy": 0.5}, 6.0, 2), most_frequent=known, **how)
    judged = JudgedSplit(by_source={"cola": answered}, several=False)
    facts = FinetuneFacts(name="a", start="b", data="c", objective="d", step=1, layout="e", seed=1)
    rows: Any = SimpleNamespace(line=lambda split, number: number)
    write_report(
        tmp_path,
        config(run={"dir": str(tmp_path)}),
        facts,
        datasets={"cola": rows},
        judged={"validation": judged},
        num_cut={},
    )
    page = (tmp_path / "report.html").read_text()
    for text in ("of always answering a, the most frequent class", "1 of 2 rows expect Thai.", "bleu tok:zh"):
        assert page.count(text) == said
