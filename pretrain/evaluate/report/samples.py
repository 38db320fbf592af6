"""A document with what the model made of it, as the page shows it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LONGEST = 3000  # characters of a text on the page
_REFERENCES = 5


@dataclass(frozen=True)
class ShownChoice:
    """One that the model could prefer."""

    text: str
    log_probability: float
    """nats"""
    compared: float
    """value by which the choices are compared"""
    correct: bool
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One document."""

    where: str
    before: str
    """instruction and solved examples"""
    question: str
    choices: Sequence[ShownChoice]
    right: bool | None
    """None: the document has no right answer"""
    notes: Sequence[str]
    """target, references and probabilities, in words"""
    answer: str | None
    """the text that the model made"""


def shown(sample: Mapping[str, Any], metric: str) -> Sample:
    """A sample of `Evaluation.samples` for display, with the choices that `metric` compares."""
    outcomes, prompt, question = sample["outcomes"], sample["prompt"], sample["question"]
    contexts = sample["contexts"] or [question]
    common = _shared(contexts) if sample["contexts"] else question
    before = prompt.removesuffix(question) if question else prompt
    text = outcomes.get("text")
    return Sample(
        where=sample["where"],
        before=_cut(before.strip("\n")),
        question=_cut((common if sample["choices"] else question).strip("\n") or sample["target"]),
        choices=_choices(sample, metric, [context[len(common) :] for context in contexts]) if sample["choices"] else (),
        right=None if "perplexity" in outcomes else sample["right"],
        notes=list(_notes(sample)),
        answer=_cut(text["answer"]) if text else None,
    )


def _choices(sample: Mapping[str, Any], metric: str, ends: Sequence[str]) -> list[ShownChoice]:
    outcome, texts = sample["outcomes"]["choice"], sample["choices"]
    way = metric.removeprefix("accuracy_")
    way = way if way in outcome["chosen"] else "sum"
    sums = outcome["log_probabilities"]
    bare = outcome.get("unconditional", [0.0] * len(sums))
    by_way = {
        "sum": [1] * len(sums),
        "per_token": outcome["tokens"],
        "per_character": [max(1, len(text)) for text in texts],
        "per_byte": [max(1, len(text.encode())) for text in texts],
    }
    compared = [
        total - alone if way == "unconditional" else total / by_way[way][n]
        for n, (total, alone) in enumerate(zip(sums, bare, strict=True))
    ]
    ends = ends if len(ends) == len(texts) else [""] * len(texts)
    return [
        ShownChoice(
            _cut(f"{end.strip()} {text}".strip()), total, value, number in sample["correct"],
            number == outcome["chosen"][way],
        )
        for number, (text, end, total, value) in enumerate(zip(texts, ends, sums, compared, strict=True))
    ]  # fmt: skip


def _notes(sample: Mapping[str, Any]) -> Sequence[str]:
    outcomes, notes = sample["outcomes"], []
    if "perplexity" in outcomes:
        outcome = outcomes["perplexity"]
        by_token = math.exp(min(700.0, -outcome["log_probability"] / max(1, outcome["tokens"])))
        return [f"perplexity {by_token:.4g} per token over {outcome['tokens']:,} tokens"]
    if not sample["choices"]:
        references = [_cut(text) for text in sample["references"]] or [_cut(sample["target"])]
        more = f" and {len(references) - _REFERENCES} others" if len(references) > _REFERENCES else ""
        notes.append("right: " + " · ".join(references[:_REFERENCES]) + more)
    if "target" in outcomes:
        probability = math.exp(outcomes["target"]["log_probability"])
        says = "what the model says by itself" if outcomes["target"]["right"] else "not what the model says by itself"
        notes.append(f"probability of the target {probability:.3g}, {says}")
    if "text" in outcomes and not outcomes["text"]["right"] and outcomes["text"]["f1"]:
        notes.append(f"F1 {100 * outcomes['text']['f1']:.1f}")
    return notes


def _shared(texts: Sequence[str]) -> str:
    """The whole words that all begin with."""
    first, last = min(texts), max(texts)
    apart = next((n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[: first.rfind(" ", 0, apart) + 1]


def _cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters …]\n{text[-half:]}"
