"""Values as people read them."""

from typing import Any

import pytest

from pretrain.evaluate.report.metrics import METRICS, metrics_of, score_text, spread_text
from tests.unit.evaluate.report.pages import many


@pytest.mark.parametrize(
    ("metric", "result", "text", "spread"),
    [
        ("accuracy_sum", {"accuracy_sum": 0.617, "accuracy_sum_stderr": 0.0109}, "61.7 ± 1.1 %", ""),
        ("accuracy_sum", {"accuracy_sum": 1.0, "accuracy_sum_stderr": None}, "100.0 %", ""),
        ("bleu", {"bleu": 0.2345, "bleu_stderr": 0.01, "bleu_spread": 0.004}, "23.4 ± 1.0", "0.4"),
        ("perplexity", {"perplexity": 12.345, "perplexity_stderr": 0.5}, "12.35 ± 0.5", ""),
        ("perplexity", {"perplexity": 5209.2, "perplexity_stderr": 500.2}, "5,209 ± 500", ""),
        ("perplexity", {"perplexity": 12.0, "perplexity_stderr": None, "perplexity_spread": 0.25}, "12", "0.25"),
        ("perplexity", {"perplexity": None, "perplexity_stderr": None}, "", ""),
        ("new_metric", {"new_metric": 3.0, "new_metric_stderr": None}, "3", ""),
        ("f1", None, "", ""),
    ],
)  # fmt: skip
def test_values_have_their_error_and_unit(metric: str, result: Any, text: str, spread: str) -> None:
    assert (score_text(result, metric), spread_text(result, metric)) == (text, spread)


def test_every_metric_of_every_kind_of_task_has_words_and_the_main_one_is_first() -> None:
    for task, by_k in many().results.items():
        for result in by_k.values() if task != "heldout" else ():
            names = metrics_of(result)
            assert names[0] == result["metric"]
            assert set(names) <= METRICS.keys()


def test_a_terminal_has_room_for_every_name() -> None:
    assert max(len(metric.short) for metric in METRICS.values()) <= 23
    assert len({metric.short for metric in METRICS.values()}) == len(METRICS)
