"""The log probability of the one target, which is right where greedy decoding would have generated exactly that."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.evaluate.heldout import exp
from pretrain.evaluate.measures.base import ForTask, Outcome, Query, fraction
from pretrain.evaluate.scorers.base import Scorer
from pretrain.evaluate.tasks.base import TaskDocument


class TargetMeasure:
    """See `base.Measure`. `perplexity` is of the target as a whole, over documents, as LAMBADA's; its standard error to
    first order."""

    name, width, answer_tokens = "target", 2, 0

    def __init__(self, about: ForTask, scorer: Scorer) -> None:
        pass

    def score(self, scorer: Scorer, queries: Sequence[Query]) -> NDArray[np.float64]:
        """See `base.Measure`."""
        return scorer.score([one.prompt.pairs[0] for one in queries])

    def outcome(self, numbers: NDArray[np.float64], document: TaskDocument) -> Outcome:
        """See `base.Measure`."""
        return {"log_probability": float(numbers[0]), "right": bool(numbers[1])}

    def numbers(self, outcome: Outcome) -> Sequence[float]:
        """See `base.Measure`."""
        return [outcome["log_probability"], outcome["right"]]

    def result(self, outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
        """See `base.Measure`."""
        sums = np.array([outcome["log_probability"] for outcome in outcomes])
        total = math.fsum(sums)
        perplexity = exp(-total / len(sums))
        error = None
        if perplexity is not None and len(sums) > 1:
            error = perplexity * float(sums.std(ddof=1)) / math.sqrt(len(sums))
        return {
            **fraction("accuracy", np.array([outcome["right"] for outcome in outcomes])),
            "log_probability_sum": total,
            "perplexity": perplexity,
            "perplexity_stderr": error,
        }
