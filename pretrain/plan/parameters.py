"""How many parameters a model has, and which of them lie where: sums over what is declared (`parts.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.plan.declaration import Declared
from pretrain.plan.layout import Layout
from pretrain.plan.parts import WORDS, declared
from pretrain.plan.split import chunk_layers


@dataclass(frozen=True)
class Held:
    """A parameter of one pipeline stage."""

    declared: Declared
    """an alias under the name of its original"""
    name: str
    """as declared: of an alias, its own"""
    copy: bool
    """an alias, whose original lies on another stage"""
    tied: bool
    """such a copy, or its original: their gradients are summed"""


def num_parameters(model: Model, padded: bool = True) -> int:
    """Trainable parameters, a tied embedding once. `padded`: as built, with the rows that round the vocabulary up;
    otherwise with the vocabulary's own rows, as papers count."""
    own = (d for d in declared(model) if d.alias_of is None)
    return sum(d.size if padded else prod(d.real_shape) for d in own)


def layer_matrices(model: Model) -> int:
    """Values of the matrices of the first layer."""
    return sum(d.size for d in declared(model) if d.depth == 1 and d.matrix)


def held_by_chunks(declarations: Sequence[Declared], layers: Sequence[int], stages: int) -> list[list[Held]]:
    """What each pipeline chunk holds. `layers`: how many each has; chunk i lies on stage i modulo `stages`. Raises
    ConfigError where stages would share more than a tied embedding."""
    ends = list(accumulate(layers))

    def chunk_of(d: Declared) -> int:
        last = min(max(d.depth, 1), ends[-1])
        return next(chunk for chunk, end in enumerate(ends) if last <= end)

    by_name = {d.name: d for d in declarations}
    apart = set()
    for alias in (d for d in declarations if d.alias_of is not None):
        original = by_name[alias.alias_of or ""]
        if chunk_of(alias) % stages != chunk_of(original) % stages:
            apart |= {alias.name, original.name}
            if original.name != WORDS:  # for which megatron-core has a group of ranks
                raise ConfigError(
                    f"{alias.name} and {original.name} are one parameter on two pipeline stages, where only a tied "
                    "embedding can be: set parallel.pipeline=1"
                )
    chunks: list[list[Held]] = [[] for _ in layers]
    for d in declarations:
        copy = d.alias_of is not None
        if not copy or d.name in apart:
            chunks[chunk_of(d)].append(Held(by_name[d.alias_of or d.name], d.name, copy, d.name in apart))
    return chunks


def chunks_of(model: Model, layout: Layout) -> list[list[Held]]:
    """What each pipeline chunk of `model` holds."""
    layers = chunk_layers(model, layout.pipeline * layout.virtual)
    return held_by_chunks(declared(model), layers, layout.pipeline)


def rank_parameters(model: Model, layout: Layout, stage: int) -> int:
    """Parameters that a tensor rank of pipeline stage `stage` holds, where data ranks share none."""
    chunks = chunks_of(model, layout)[stage :: layout.pipeline]
    return sum(prod(held.declared.local_shape({"tensor": layout.tensor})) for chunk in chunks for held in chunk)
