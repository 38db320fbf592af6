"""Inputs of the loop's reports: fields of the results of a step, of a held-out evaluation and of tasks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pretrain.observe.spikes import StepNumbers


class Result(StepNumbers, Protocol):
    """Fields of the engine's StepResult that are reported."""

    @property
    def loss_scale(self) -> float | None: ...
    @property
    def terms(self) -> Mapping[str, tuple[float, int]]: ...
    @property
    def by_source(self) -> Mapping[str, tuple[float, int]]: ...
    @property
    def tokens(self) -> int | None: ...
    @property
    def flops(self) -> float | None: ...
    @property
    def figures(self) -> Mapping[str, float]: ...
    @property
    def tokens_per_expert(self) -> Mapping[str, Sequence[int]]: ...


class HeldOutLoss(Protocol):
    """Fields of the held-out evaluation that are reported."""

    @property
    def loss(self) -> float: ...
    @property
    def token_count(self) -> int: ...
    @property
    def terms(self) -> Mapping[str, tuple[float, int]]: ...
    @property
    def by_source(self) -> Sequence[tuple[float, int]]: ...
    @property
    def bits_per_byte_by_source(self) -> Sequence[float | None]: ...


TaskResults = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""task -> number of shots -> its figures, of which `metric` names the main one"""


def heldout_terms(heldout: HeldOutLoss, sources: Sequence[str]) -> dict[str, float]:
    """The mean of each term by its name in events.jsonl; of several `sources` also the loss of each, and its bits per
    byte where they are known."""
    terms = {f"loss_{name}": mean for name, mean in means(heldout.terms).items()}
    if len(sources) > 1:
        each = means_of_sources(dict(zip(sources, heldout.by_source, strict=True)))
        terms |= {f"loss_{name}": mean for name, mean in each.items()}
        bits = zip(sources, heldout.bits_per_byte_by_source, strict=False)
        terms |= {f"bits_per_byte_source_{name}": value for name, value in bits if value is not None}
    return terms


def means(terms: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    """The mean of each term, given its sum and count; NaN without any."""
    return {name: value / count if count else math.nan for name, (value, count) in terms.items()}


def means_of_sources(by_source: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    """The mean loss of each source that has labels here."""
    return {f"source_{name}": mean for name, mean in means(by_source).items() if by_source[name][1]}
