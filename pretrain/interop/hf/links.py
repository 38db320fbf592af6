"""Conversion between our parameters and Hugging Face's: usually one of ours is one or several of theirs.

A family's file lists its links once. Export and import both follow them, a link at a time, so that only the parameters
of one link are in memory. `mcore` and `hf` are the names of a tensor or module here, as megatron-core has them, and in
transformers. Functions take meta tensors too: that is how shapes are known before values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.config.model import Model

Many = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True)
class Link:
    """Tensors that are converted together. `out` converts values of `mcore_names` to those of `hf_names`, `back` the
    other way."""

    mcore_names: tuple[str, ...]
    hf_names: tuple[str, ...]
    out: Many
    back: Many


def one(
    mcore: str, hf: tuple[str, ...], out: Callable[[Tensor], Sequence[Tensor]], back: Callable[..., Tensor]
) -> Link:  # fmt: skip
    """A link of one of our parameters."""
    return Link((mcore,), hf, out, lambda *values: [back(*values)])


def same(mcore: str, hf: str) -> Link:
    return one(mcore, (hf,), lambda x: [x], lambda x: x)


def transposed(mcore: str, hf: str) -> Link:
    """Conv1D keeps [in, out]."""
    return one(mcore, (hf,), lambda x: [x.T], lambda x: x.T)


def rows(mcore: str, hf: str, model: Model) -> Link:
    """The vocabulary's rows, without those that pad it (which are zeros when they come back)."""
    assert model.vocabulary is not None
    real, padding = model.vocabulary, model.padded_vocab_size - model.vocabulary

    def back(x: Tensor) -> Tensor:
        return torch.cat((x, x.new_zeros(padding, *x.shape[1:]))) if padding else x  # a copy is as large as any tensor

    return one(mcore, (hf,), lambda x: [x[:real]], back)


def linear(mcore: str, hf: str, model: Model) -> Iterator[Link]:
    """Weight, and bias if the model has them."""
    for leaf in ("weight", "bias") if model.bias else ("weight",):
        yield same(f"{mcore}.{leaf}", f"{hf}.{leaf}")


def norm(mcore: str, hf: str, model: Model) -> Iterator[Link]:
    for leaf in ("weight", "bias") if model.norm_type == "layer" else ("weight",):
        yield same(f"{mcore}.{leaf}", f"{hf}.{leaf}")


def by_head(mcore: str, hf: Sequence[str], model: Model) -> Iterator[Link]:
    """Each key and value, and before them (if `hf` has three names) the queries that share them, lie together here, and
    apart there."""
    queries = (model.heads // model.num_kv_heads,) if len(hf) == 3 else ()
    heads = (*queries, 1, 1)  # of each group, of each of `hf`

    def out(fused: Tensor) -> Sequence[Tensor]:
        split = fused.view(model.num_kv_heads, sum(heads), model.dim_per_head, *fused.shape[1:])
        return [part.flatten(0, 2) for part in split.split(heads, dim=1)]

    def back(*values: Tensor) -> Tensor:
        split = [
            value.view(model.num_kv_heads, count, model.dim_per_head, *value.shape[1:])
            for value, count in zip(values, heads, strict=True)
        ]
        return torch.cat(split, dim=1).flatten(0, 2)

    for leaf in ("weight", "bias") if model.has_qkv_bias else ("weight",):
        yield one(f"{mcore}.{leaf}", tuple(f"{name}.{leaf}" for name in hf), out, back)


def gated(mcore: str, gate: str, value: str) -> Link:
    """Gate and value of each feature lie side by side here."""
    return one(
        mcore, (gate, value), lambda x: [x[0::2], x[1::2]], lambda g, v: torch.stack((g, v), dim=1).flatten(0, 1)
    )
