"""BLEU and chrF of a corpus, by sacrebleu."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sacrebleu

from pretrain.errors import ConfigError

_INTERVAL = 1.96  # standard deviations in half of a 95 % interval


BY_SPACE = ("13a", "intl", "none")
"""sacrebleu's tokenizers that take what white space separates for words, but for punctuation"""
CHRF = {"chrf": 0, "chrf++": 2}
"""order of words of chrF and chrF++ (sacrebleu's word_order)"""


@dataclass(frozen=True)
class CorpusScore:
    """BLEU or chrF of all hypotheses together."""

    score: float
    """0 to 100"""
    error: float | None
    """standard error: that of a normal distribution with the 95 % interval of sacrebleu's resamples; None: not
    computed"""
    signature: str
    """sacrebleu's, which says how it was computed"""


def check_tokenize(tokenize: str) -> None:
    """Raises ConfigError where sacrebleu's tokenizer of that name needs a package or a file that is not here."""
    _made(tokenize)


def _made(tokenize: str) -> sacrebleu.BLEU:
    try:
        return sacrebleu.BLEU(tokenize=tokenize)
    except (RuntimeError, ImportError, OSError) as error:
        extra = {"ja-mecab": "ja", "ko-mecab": "ko"}.get(tokenize)
        advice = f"install sacrebleu[{extra}]" if extra else f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(
            f"sacrebleu cannot make its tokenizer {tokenize} here ({advice}): or take another one, such as char"
        ) from None


def bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], resamples: int = 1, *, tokenize: str = "13a"
) -> CorpusScore:
    """Corpus BLEU. Each hypothesis has one or more `references`. `resamples` bootstrap samples of the hypotheses give
    the standard error; 1: no standard error. `tokenize`: sacrebleu's tokenizer."""
    return _scored(_made(tokenize), hypotheses, references, resamples)


def chrf(
    name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]], resamples: int = 1
) -> CorpusScore:  # fmt: skip
    """Corpus chrF, or chrF++, by name: see `bleu`."""
    return _scored(sacrebleu.CHRF(word_order=CHRF[name]), hypotheses, references, resamples)


def _scored(
    metric: sacrebleu.BLEU | sacrebleu.CHRF,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    resamples: int,
) -> CorpusScore:
    streams: list[Any] = [  # one without so many has None
        [texts[number] if number < len(texts) else None for texts in references]
        for number in range(max(map(len, references)))
    ]
    score = metric.corpus_score(list(hypotheses), streams, n_bootstrap=resamples)
    error = score._ci / _INTERVAL if resamples > 1 and len(hypotheses) > 1 else None
    return CorpusScore(float(score.score), error, str(metric.get_signature()))
