"""Judged by which of the choices the model prefers, with the ways of comparing choices of unlike length.

- sum: log probability of the choice
- per_token, per_character, per_byte: that by its length; GPT-3's is by tokens, lm-eval's `acc_norm` by characters
- unconditional: less the choice's log probability after a bare context ("Answer:"), where the task names one: GPT-3's
  for ARC, OpenBookQA and RACE

A model that reads from right to left scores the text of context and choice together: per_token is by the tokens of that
text, and per_character and per_byte, which are by the length of the choice, are left out.

Of choices that are equally good the first is taken. A right choice that is there twice is right both times.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.evaluate.measures.base import ForTask, Outcome, Query, fraction
from pretrain.evaluate.measures.group_metrics import GROUP_METRICS
from pretrain.evaluate.scorers.base import Scorer
from pretrain.evaluate.tasks.base import TaskDocument

_EACH = 3  # numbers of a choice: log probability, tokens, log probability after the bare context


class ChoiceMeasure:
    """See `base.Measure`. Log probabilities are of the target after its context."""

    name, answer_tokens = "choice", 0

    def __init__(self, about: ForTask, scorer: Scorer) -> None:
        self._by_length = scorer.conditional
        self._bare, self._metrics = about.task.unconditional_context, about.task.metrics
        self.width = _EACH * max(len(document.choices) for document in about.documents)

    def score(self, scorer: Scorer, queries: Sequence[Query]) -> NDArray[np.float64]:
        """See `base.Measure`."""
        numbers = np.zeros((len(queries), self.width))
        numbered = [(row, number) for row, one in enumerate(queries) for number in range(len(one.prompt.pairs))]
        pairs = [queries[row].prompt.pairs[number] for row, number in numbered]
        scored = scorer.score(pairs, [row for row, _ in numbered])[:, 0]
        bare = np.zeros(len(pairs))
        if self._bare is not None:
            bare = scorer.score(
                [scorer.pair(self._bare, queries[row].prompt.continuations[n].target) for row, n in numbered]
            )[:, 0]
        for (row, number), pair, total, bare_total in zip(numbered, pairs, scored, bare, strict=True):
            numbers[row, _EACH * number : _EACH * (number + 1)] = total, len(pair[1]), bare_total
        return numbers

    def outcome(self, numbers: NDArray[np.float64], document: TaskDocument) -> Outcome:
        """See `base.Measure`. `chosen` and `right` are by the way of comparing."""
        each = numbers.reshape(-1, _EACH)[: len(document.choices)]
        sums, tokens, bare = each.T
        texts = [choice.target.lstrip() for choice in document.choices]
        ways = {
            "sum": sums,
            "per_token": sums / tokens,
        }
        if self._by_length:
            ways["per_character"] = sums / [max(1, len(text)) for text in texts]
            ways["per_byte"] = sums / [max(1, len(text.encode())) for text in texts]
        if self._bare is not None:
            ways["unconditional"] = sums - bare
        chosen = {way: int(scores.argmax()) for way, scores in ways.items()}
        return {
            "log_probabilities": sums.tolist(),
            "tokens": tokens.astype(int).tolist(),
            **({"unconditional": bare.tolist()} if self._bare is not None else {}),
            "chosen": chosen,
            "right": {way: choice in document.correct for way, choice in chosen.items()},
        }

    def numbers(self, outcome: Outcome) -> Sequence[float]:
        """See `base.Measure`."""
        sums, tokens = outcome["log_probabilities"], outcome["tokens"]
        bare = outcome.get("unconditional", [0.0] * len(sums))
        row = [value for each in zip(sums, tokens, bare, strict=True) for value in each]
        return [*row, *[0.0] * (self.width - len(row))]

    def result(self, outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
        """See `base.Measure`. `chance`: the accuracy of choosing blindly."""
        result: dict[str, Any] = {}
        for way in outcomes[0]["right"]:
            result |= fraction(f"accuracy_{way}", np.array([outcome["right"][way] for outcome in outcomes]))
        shares = [len(document.correct) / len(document.choices) for document in documents]
        result["chance"] = math.fsum(shares) / len(shares)
        for name in self._metrics:
            if name in GROUP_METRICS:
                result |= GROUP_METRICS[name](outcomes, documents)
        return result
