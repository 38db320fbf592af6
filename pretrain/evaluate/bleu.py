"""BLEU of a corpus, by sacrebleu."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sacrebleu

_INTERVAL = 1.96  # standard deviations in half of a 95 % interval


@dataclass(frozen=True)
class Bleu:
    """BLEU of all hypotheses together."""

    score: float
    """0 to 100"""
    error: float | None
    """standard error: that of a normal distribution with the 95 % interval of sacrebleu's resamples; None: not
    computed"""
    signature: str
    """sacrebleu's, which says how it was computed"""


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], resamples: int = 1) -> Bleu:
    """Corpus BLEU. Each hypothesis has one or more `references`. `resamples` bootstrap samples of the hypotheses give
    the standard error; 1: no standard error."""
    metric = sacrebleu.BLEU()
    streams: list[Any] = [  # one without so many has None
        [texts[number] if number < len(texts) else None for texts in references]
        for number in range(max(map(len, references)))
    ]
    score = metric.corpus_score(list(hypotheses), streams, n_bootstrap=resamples)
    error = score._ci / _INTERVAL if resamples > 1 and len(hypotheses) > 1 else None
    return Bleu(float(score.score), error, str(metric.get_signature()))
