"""Ranks to rehearse: by number, by pipeline stage, or one of each kind."""

from collections.abc import Iterable
from itertools import accumulate, pairwise, product

from pretrain.config.model import Model
from pretrain.config.parallel import Parallel
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.model_spec.split import chunk_layers

ALL_KINDS = "all-kinds"
NAMED_RANKS = ("first", "middle", "last", ALL_KINDS)


def rank_numbers(ranks: Iterable[int | str], config: RunConfig, layout: Layout) -> list[int]:
    """Numbers of `ranks`, which are numbers or NAMED_RANKS, each once. `first` is the first rank of the first stage,
    `last` the last one of the last, `middle` in the middle of the stage in the middle. Raises ConfigError for ranks
    that don't exist."""
    numbers: list[int] = []
    for rank in ranks:
        if rank == ALL_KINDS:
            numbers += _all_kinds(config, layout)
        elif isinstance(rank, str):
            numbers.append(_on_stage(rank, layout))
        elif rank < layout.world:
            numbers.append(rank)
        else:
            raise ConfigError(f"--ranks {rank}: the run has ranks 0 to {layout.world - 1}")
    return list(dict.fromkeys(numbers))


def _on_stage(name: str, layout: Layout) -> int:
    per_stage = layout.world // layout.pipeline
    return {"first": 0, "middle": layout.pipeline // 2 * per_stage + per_stage // 2, "last": layout.world - 1}[name]


def _all_kinds(config: RunConfig, layout: Layout) -> list[int]:
    """A rank for each combination of a kind of stage, tensor rank, context rank and data rank. On each axis, the first
    and the last one differ from the others: they hold the ends of what is split, and pad it."""
    axes = [
        _heads(config.model, layout.tensor, 1),
        _heads(config.model, layout.context, layout.tensor),
        _replicas(config.parallel, layout),
        _stages(config.model, layout),
    ]
    if layout.expert > 1:
        axes = [kinds | more for kinds, more in zip(axes, _expert_ranks(layout), strict=True)]
    return sorted(layout.rank(*coordinates) for coordinates in product(*axes))


def _ends(count: int) -> set[int]:
    return {0, count - 1}


def _heads(model: Model, ranks: int, splits: int) -> set[int]:
    """Kinds of `ranks` that split the heads after `splits` have: patterns of heads may differ."""
    heads, period = model.heads // (ranks * splits), model.attention.head_period
    first_of_kind = {rank * heads % period: rank for rank in reversed(range(ranks))}
    return _ends(ranks) | set(first_of_kind.values())


def _replicas(parallel: Parallel, layout: Layout) -> set[int]:
    """With hpz, weights are also gathered among neighbours: the second rank is one of the first's."""
    return _ends(layout.data) | ({1} if parallel.hpz > 1 else set())


def _expert_ranks(layout: Layout) -> list[set[int]]:
    """Coordinates on each axis of ranks that share experts: of a second one with the first's other experts, and of the
    next one with the same."""
    ranks = layout.world // layout.pipeline
    next_ranks = (layout.expert_tensor, layout.expert_tensor * layout.expert % ranks)
    return [set(numbers) for numbers in zip(*map(layout.coordinates, next_ranks), strict=True)]


def _stages(model: Model, layout: Layout) -> set[int]:
    """Both stages of each kind of neighbours: a kind of stage is what its layers are, and whether it is at an end."""
    kinds = [
        (stage == 0, stage == layout.pipeline - 1, chunks)
        for stage, chunks in enumerate(_layers_of_stages(model, layout))
    ]
    neighbours = {(kinds[stage], kinds[stage + 1]): stage for stage in reversed(range(layout.pipeline - 1))}
    return _ends(layout.pipeline) | {stage + side for stage in neighbours.values() for side in (0, 1)}


def _layers_of_stages(model: Model, layout: Layout) -> list[tuple[tuple[tuple[int, int, bool], ...], ...]]:
    """The kind of each layer of each chunk of each stage: its stack, its attention pattern, and whether it has
    experts."""
    patterns = len(model.attention.pattern)
    layers = [
        (stack, layer % patterns, model.has_experts(layer))
        for stack, count in enumerate(model.stacks)
        for layer in range(count)
    ]
    ends = [0, *accumulate(chunk_layers(model, layout.pipeline, layout.virtual))]
    chunks = [tuple(layers[begin:end]) for begin, end in pairwise(ends)]
    return [tuple(chunks[stage :: layout.pipeline]) for stage in range(layout.pipeline)]
