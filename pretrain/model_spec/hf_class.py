"""A class of transformers that models of a family are exported to, known without that library."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pretrain.config.model import Model

Kind = Literal["sequence", "tokens", "spans", "span", "choice", "detector"]


def kin(name: str, *kinds: Kind) -> dict[Kind, str]:
    """Classes of fine-tuned models by kind, as transformers names them after a model."""
    ends = {"sequence": "SequenceClassification", "tokens": "TokenClassification", "spans": "QuestionAnswering"}
    more = {"choice": "MultipleChoice"}
    return {kind: f"{name}For{(ends | more)[kind]}" for kind in kinds}


def _any(model: Model) -> bool:
    return True


def _nothing_amiss(model: Model) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class HfClass:
    """A class: a row of `hf_table.py`, or one that a folder of `pretrain/classics` or a package declares, under its
    family's name or as a further class for another `family`; an `HfFamily` of the same name converts to it."""

    model_type: str
    """`model_type` in config.json"""
    family: str | None = None
    """a family of ours, some of whose models it takes, those of folders before those of `hf_table.py` (not in
    packages)"""
    takes: Callable[[Model], bool] = _any
    """whether it takes a model of that family"""
    check: Callable[[Model], None] = _nothing_amiss
    """raises ConfigError for a model that it cannot express"""
    heads: Mapping[Kind, str] = field(default_factory=dict)
    """classes of fine-tuned models by kind of head"""
    otherwise: Mapping[Kind, str] = field(default_factory=dict)
    """why a class that transformers has for a kind of head computes something else"""
    encoder_alone: bool = False
    """encoders without a head are exported"""
