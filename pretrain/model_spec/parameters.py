"""How many parameters a model has, and which of them lie where: sums over what is declared (`parts.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Literal

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.model_spec.modules import WORDS, declared
from pretrain.model_spec.parameter_spec import Declared
from pretrain.model_spec.split import chunk_layers

Stages = Literal["own", "ends", "all"]
"""that hold a parameter: one alone, the first and the last (a tied embedding), or every one (layers that are one)"""


@dataclass(frozen=True)
class Held:
    """A parameter of one pipeline stage."""

    declared: Declared
    """an alias under the name of its original"""
    name: str
    """as declared: of an alias, its own"""
    copy: bool
    """an alias, whose original lies on another stage"""
    stages: Stages
    """where such a copy, or its original, is held: their gradients are summed"""


def num_parameters(model: Model, padded: bool = True) -> int:
    """Trainable parameters; a tied embedding, and layers that are one, once. `padded`: as built, with the rows that
    round the vocabulary up; otherwise with the vocabulary's own rows, as papers count."""
    own = (d for d in declared(model) if d.alias_of is None)
    return sum(d.size if padded else prod(d.real_shape) for d in own)


def layer_matrices(model: Model) -> int:
    """Values of the matrices of the first layer."""
    return sum(d.size for d in declared(model) if d.depth == 1 and d.matrix)


def held_by_chunks(declarations: Sequence[Declared], layers: Sequence[int], stages: int) -> list[list[Held]]:
    """What each pipeline chunk holds. `layers`: how many each has; chunk i lies on stage i modulo `stages`. Raises
    ConfigError where stages would share more than a tied embedding, or layers that not all of them have."""
    ends = list(accumulate(layers))

    def chunk_of(d: Declared) -> int:
        last = min(max(d.depth, 1), ends[-1])
        return next(chunk for chunk, end in enumerate(ends) if last <= end)

    by_name = {d.name: d for d in declarations}
    used: dict[str, set[int]] = {d.name: {chunk_of(d)} for d in declarations if d.alias_of is None}
    for alias in (d for d in declarations if d.alias_of is not None):
        used[alias.alias_of or ""].add(chunk_of(alias))
    chunks: list[list[Held]] = [[] for _ in layers]
    held: set[tuple[str, int]] = set()
    for d in declarations:
        original, chunk = by_name[d.alias_of or d.name], chunk_of(d)
        if (original.name, chunk) not in held:  # by its first use in a chunk
            held.add((original.name, chunk))
            on = _on(original.name, used[original.name], stages)
            chunks[chunk].append(Held(original, d.name, d.alias_of is not None, on))
    return chunks


def _on(name: str, chunks: set[int], stages: int) -> Stages:
    """Where a parameter is that these chunks use."""
    if len(chunks) == 1:
        return "own"
    if name == WORDS:  # for which megatron-core has a group of ranks
        return "ends"
    if chunks == set(range(stages)):
        return "all"
    raise ConfigError(
        f"{name} is one parameter of {len(chunks)} pipeline chunks on {stages} stages; besides a tied embedding, only "
        "what every stage has in its one chunk can be: set parallel.pipeline=1 and parallel.virtual=1"
    )


def chunks_of(model: Model, layout: Layout) -> list[list[Held]]:
    """What each pipeline chunk of `model` holds."""
    layers = chunk_layers(model, layout.pipeline * layout.virtual)
    return held_by_chunks(declared(model), layers, layout.pipeline)


def rank_parameters(model: Model, layout: Layout, stage: int) -> int:
    """Parameters that a tensor rank of pipeline stage `stage` holds, where data ranks share none."""
    chunks = chunks_of(model, layout)[stage :: layout.pipeline]
    return sum(prod(held.declared.local_shape({"tensor": layout.tensor})) for chunk in chunks for held in chunk)
