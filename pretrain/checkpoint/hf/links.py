"""How our parameters are Hugging Face's, and back: mostly one of ours is one or several of theirs.

A family's file lists its links once; export and import both follow them, a link at a time, so that no more is held than
the parameters of one. Functions take meta tensors too: that is how shapes are known before values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.config.model import Model

Many = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True)
class Link:
    """`out` makes the tensors called `theirs` of those called `ours`, `back` ours of theirs."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    out: Many
    back: Many


def one(
    ours: str, theirs: tuple[str, ...], out: Callable[[Tensor], Sequence[Tensor]], back: Callable[..., Tensor]
) -> Link:  # fmt: skip
    """A link of one of our parameters."""
    return Link((ours,), theirs, out, lambda *parts: [back(*parts)])


def same(ours: str, theirs: str) -> Link:
    return one(ours, (theirs,), lambda x: [x], lambda x: x)


def transposed(ours: str, theirs: str) -> Link:
    """Conv1D keeps [in, out]."""
    return one(ours, (theirs,), lambda x: [x.T], lambda x: x.T)


def rows(ours: str, theirs: str, model: Model) -> Link:
    """The vocabulary's rows, without those that pad it (which are zeros when they come back)."""
    assert model.vocabulary is not None
    real, padding = model.vocabulary, model.padded_vocab_size - model.vocabulary
    return one(ours, (theirs,), lambda x: [x[:real]], lambda x: torch.cat((x, x.new_zeros(padding, *x.shape[1:]))))


def linear(ours: str, theirs: str, model: Model) -> Iterator[Link]:
    """Weight, and bias if the model has them."""
    for leaf in ("weight", "bias") if model.bias else ("weight",):
        yield same(f"{ours}.{leaf}", f"{theirs}.{leaf}")


def norm(ours: str, theirs: str, model: Model) -> Iterator[Link]:
    for leaf in ("weight", "bias") if model.norm_type == "layer" else ("weight",):
        yield same(f"{ours}.{leaf}", f"{theirs}.{leaf}")


def by_head(ours: str, theirs: Sequence[str], model: Model) -> Iterator[Link]:
    """Each key and value, and before them (if `theirs` are three) the queries that share them, lie together here, and
    apart there."""
    queries = (model.heads // model.num_kv_heads,) if len(theirs) == 3 else ()
    heads = (*queries, 1, 1)  # of each group, of each of `theirs`

    def out(fused: Tensor) -> Sequence[Tensor]:
        split = fused.view(model.num_kv_heads, sum(heads), model.dim_per_head, *fused.shape[1:])
        return [part.flatten(0, 2) for part in split.split(heads, dim=1)]

    def back(*parts: Tensor) -> Tensor:
        split = [
            part.view(model.num_kv_heads, count, model.dim_per_head, *part.shape[1:])
            for part, count in zip(parts, heads, strict=True)
        ]
        return torch.cat(split, dim=1).flatten(0, 2)

    for leaf in ("weight", "bias") if model.has_qkv_bias else ("weight",):
        yield one(f"{ours}.{leaf}", tuple(f"{name}.{leaf}" for name in theirs), out, back)


def gated(ours: str, gate: str, value: str) -> Link:
    """Gate and value of each feature lie side by side here."""
    return one(ours, (gate, value), lambda x: [x[0::2], x[1::2]], lambda g, v: torch.stack((g, v), dim=1).flatten(0, 1))
