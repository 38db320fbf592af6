"""Facts of an evaluation: everything needed to repeat it."""

from collections.abc import Sequence
from dataclasses import dataclass

from pretrain.evaluate.decoding.base import Beam, Decoding


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about the evaluation of one checkpoint."""

    name: str
    """name of the run"""
    checkpoint: str
    identity: str
    """digest of the weights and of the precision of the evaluation"""
    step: int
    tokens: int
    """trained on"""
    parameters: int
    layout: str
    """layout of the evaluation"""
    scorer: str
    """meaning of a score, by the kind of model"""
    seed: int
    """seed of the few-shot examples and of generated documents"""
    shots: Sequence[int] | None
    """numbers of few-shot examples; None: 0, 1 and the K of the paper's few-shot setting"""
    draws: int
    """random draws of few-shot examples per document"""
    limit: int | None
    """documents per task"""
    decoding: str
    """decoding of answers in text"""
    command: str
    """the command line"""
    versions: dict[str, str]
    """versions of the libraries"""
    unigram_entropy: float | None
    """unigram entropy of the held-out tokens, nats per token (see heldout.py)"""


def decoding_words(decoding: Decoding | None) -> str:
    """The decoding, in words for a report."""
    if decoding is None:
        return "as GPT-3's paper: greedy, or where it says so a beam of 4 with length penalty 0.6"
    if isinstance(decoding, Beam):
        return f"a beam of {decoding.width} with length penalty {decoding.penalty:g}"
    if decoding.temperature == 0:
        return "greedy"
    among = [
        f"{name} {value:g}"
        for name, value in (("top-k", decoding.top_k), ("top-p", decoding.top_p))
        if value is not None
    ]
    return ", ".join([f"drawn at temperature {decoding.temperature:g}", *among, f"seed {decoding.seed}"])
