"""What attention keeps for its backward pass besides queries, keys, values and its output: see `Work` for the names."""

from dataclasses import dataclass

import numpy as np

from pretrain.config.attention import Banded, Dense
from pretrain.config.model import Model
from pretrain.config.patterns.base import PatternSettings

_TOGETHER = 128
"""Least number of queries of a band that share a window."""


@dataclass(frozen=True)
class AttentionKept:
    """What attention keeps in one model, averaged over layers; `most_scores` is a maximum."""

    windows: float
    score_biases: float
    score_bytes: float
    read_score_bytes: float
    score_share: float
    most_scores: float
    pair_bytes: float


def attention_kept(model: Model, width: float, mask_bytes: float, on_cpu: bool) -> AttentionKept:
    """Computes what attention keeps. `width`: bytes of an activation. `mask_bytes`: bytes of an element's dropout
    mask."""
    learned = model.positions.name == "relative"
    biased = learned or model.positions.name == "alibi"
    drops = model.attention_dropout > 0
    writes = drops or model.needs_explicit_scores
    patterns = [model.attention.of_layer(layer) for layer in range(max(model.stacks))]
    if writes:
        shares = [1.0 if biased else _chunk_share(pattern, model) for pattern in patterns]
        windows = [float(share < 1) for share in shares]
    else:
        shares, windows = [1.0], [_windows(pattern, model, on_cpu) for pattern in patterns]
    seen = 1.0 if writes or (learned and not model.is_encoder_decoder) else 0.0
    rows = 8.0 if model.shaw_rows else 0.0  # which row of the tables each pair picks
    rounded = width if width < 4 else 0.0  # probabilities are made in fp32
    of_cap = width if model.attention_logit_softcap is not None else 0.0
    dropped = mask_bytes + width if drops else rounded
    return AttentionKept(
        windows=float(np.mean(windows)),
        score_biases=biased and not writes,
        score_bytes=4 + of_cap + dropped if writes else 0.0,
        read_score_bytes=4 + dropped if drops else 0.0,
        score_share=float(np.mean(shares)),
        most_scores=max(shares),
        pair_bytes=seen + rows,
    )


def _chunk_share(pattern: PatternSettings, model: Model) -> float:
    """Share of a sequence's keys that a chunk of queries meets (`attention/patterns/banded.py`)."""
    if not isinstance(pattern, Banded) or model.has_encoder or pattern.reach >= model.sequence_length:
        return 1.0
    return 2 * pattern.reach / model.sequence_length


def _windows(pattern: PatternSettings, model: Model, on_cpu: bool) -> float:
    """On a CPU a kernel goes through windows and keeps none (`attention/patterns/merged.py`). Where biases by distance
    are learned, it multiplies copies of queries and keys, of a window's size; of an encoder's padded rows it keeps what
    it made of tokens, half of that size, beside the rows."""
    if not on_cpu:
        return copies(pattern)
    padded = 0.5 if model.has_encoder and not isinstance(pattern, Dense) else 0.0
    return padded + (model.positions.name == "relative")


def copies(pattern: PatternSettings) -> float:
    """Number of windows in which each key is kept besides its own: neighbouring queries share one
    (`attention/patterns/tiles.py`). Patterns of several tiles are assumed to keep it in one."""
    if isinstance(pattern, Dense):
        return 0.0
    if not isinstance(pattern, Banded):
        return 1.0
    before = pattern.reach - 1
    return before / max(_TOGETHER, before // 4)
