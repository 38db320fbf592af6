"""Names of metrics, and the way that their values are written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pretrain.pages.numbers import figure

_ERROR = "_stderr"
_MOST = 0.5


@dataclass(frozen=True)
class Metric:
    """Presentation of one metric in reports."""

    words: str
    """description, with the way that choices are compared"""
    short: str
    """for a terminal, 23 characters at most"""
    kind: Literal["share", "points", "plain"]
    """written in per cent; times 100; as it is"""

    @property
    def times(self) -> int:
        """Factor that a value is multiplied by."""
        return 1 if self.kind == "plain" else 100

    @property
    def unit(self) -> str:
        """After a value."""
        return " %" if self.kind == "share" else ""


def _compared(by: str) -> str:
    return f"accuracy, choices compared {by}"


METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy, every token of the target most probable", "accuracy of target", "share"),
    "accuracy_sum": Metric(_compared("by log probability as it is"), "accuracy by sum", "share"),
    "accuracy_per_token": Metric(_compared("per token"), "accuracy per token", "share"),
    "accuracy_per_character": Metric(_compared("per character"), "accuracy per character", "share"),
    "accuracy_per_byte": Metric(_compared("per byte"), "accuracy per byte", "share"),
    "accuracy_unconditional": Metric(
        _compared("by how much the question raises their probability"), "accuracy unconditional", "share"
    ),
    "exact_match": Metric("exact match of the text made", "exact match", "share"),
    "f1": Metric("F1 of the words of the text made", "F1 of words", "points"),
    "bleu": Metric("BLEU of the texts made", "BLEU", "points"),
    "chrf": Metric("chrF of the texts made", "chrF", "points"),
    "chrf++": Metric("chrF++ of the texts made", "chrF++", "points"),
    "gleu": Metric("GLEU of the corrections made", "GLEU", "points"),
    "rouge1": Metric("ROUGE-1 of the texts made, F1 of words", "ROUGE-1", "points"),
    "rouge2": Metric("ROUGE-2 of the texts made, F1 of pairs of words", "ROUGE-2", "points"),
    "rougeL": Metric("ROUGE-L of the texts made, by the longest common subsequence", "ROUGE-L", "points"),
    "rougeLsum": Metric("ROUGE-L of the texts made, by lines", "ROUGE-L by lines", "points"),
    "positive_f1": Metric("F1 of the last choice", "F1 of last choice", "points"),
    "matthews": Metric("Matthews correlation of the choices", "Matthews correlation", "points"),
    "macro_f1": Metric("F1, mean of the classes", "macro F1", "points"),
    "group_f1": Metric("F1 of the answers that are true", "F1 of answers", "points"),
    "group_all": Metric("questions with every answer judged rightly", "all answers right", "share"),
    "perplexity": Metric("perplexity of the target", "perplexity of target", "plain"),
    "token_perplexity": Metric("perplexity per token", "perplexity per token", "plain"),
    "word_perplexity": Metric("perplexity per word", "perplexity per word", "plain"),
    "byte_perplexity": Metric("perplexity per byte", "perplexity per byte", "plain"),
    "character_perplexity": Metric("perplexity per character", "perplexity/character", "plain"),
    "loss": Metric("loss, nats per token", "loss per token", "plain"),
    "bits_per_byte": Metric("bits per byte", "bits per byte", "plain"),
    "bits_per_character": Metric("bits per character", "bits per character", "plain"),
}
"""metrics by their names in results"""


def metric_named(name: str) -> Metric:
    """One that isn't known, such as another version's, is called by its name."""
    return METRICS.get(name) or Metric(name.replace("_", " "), name.replace("_", " "), "plain")


def metrics_of(result: Mapping[str, Any]) -> list[str]:
    """All metrics of a task's result, the main one first."""
    names = [name.removesuffix(_ERROR) for name in result if name.endswith(_ERROR)]
    return sorted(names, key=lambda name: name != result["metric"])


def further_losses(heldout: Mapping[str, Any]) -> dict[str, float]:
    """`loss_NAME` of each further term of the held-out loss, without its weight."""
    return {name: value for name, value in heldout.items() if name.startswith("loss_") and name != "loss_sum"}


def is_unspaced(heldout: Mapping[str, Any]) -> bool:
    """Whether most of the letters of held-out text are of scripts without spaces, so that it has no words to count."""
    return (heldout.get("unspaced_share") or 0) > _MOST


def score_text(result: Mapping[str, Any] | None, name: str) -> str:
    """A value with one standard error; nothing for what isn't known."""
    if result is None or result.get(name) is None:
        return ""
    metric, error = metric_named(name), result.get(f"{name}{_ERROR}")
    if metric.kind == "plain":
        return figure(result[name]) + (f" ± {figure(error, 2)}" if error is not None else "")
    value = f"{metric.times * result[name]:.1f}"
    return value + (f" ± {metric.times * error:.1f}" if error is not None else "") + metric.unit


def spread_text(result: Mapping[str, Any] | None, name: str) -> str:
    """The standard deviation between draws of shots; nothing where there is one draw."""
    spread = None if result is None else result.get(f"{name}_spread")
    if spread is None:
        return ""
    metric = metric_named(name)
    return figure(spread, 2) if metric.kind == "plain" else f"{metric.times * spread:.1f}{metric.unit}"


UNFIT = {
    "wrong_by_form": "answers wrong only by their Unicode form, width, digits, punctuation or case, which the task's "
    "rule compares as ASCII (metadata.pretrain.normalization: unicode, or one_form: true, reads every script)",
    "unspaced": "documents in a script without spaces, of which a metric takes what white space separates for a word "
    "(metadata.pretrain: normalization: unicode, words: unicode, bleu_tokenize: zh, ja-mecab or char)",
    "unspaced_texts": "documents in a script without spaces, whose perplexity per word says nothing: "
    "character_perplexity and bits_per_character do",
    "letters_lost": "documents with letters beyond a-z, which ROUGE leaves out (metadata.pretrain.words: unicode)",
}
"""effects on other text of rules that were made for English, by the name of their count in a result"""


def unfit_counts(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Documents and answers of each task and number of shots that its rules were not made for, in words; empty if there
    are none."""
    return [
        f"{task} {k}-shot {result[name]:,} of {result['documents']:,} {words}"
        for task, by_k in results.items()
        for k, result in by_k.items()
        for name, words in UNFIT.items()
        if result.get(name)
    ]


def chance_text(result: Mapping[str, Any], name: str) -> str:
    """Accuracy of choosing blindly; nothing where that isn't known, or for other metrics."""
    return f"{100 * result['chance']:.1f} %" if "chance" in result and name.startswith("accuracy") else ""
