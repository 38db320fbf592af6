"""Search over every legal layout of a run on a number of devices, with estimates, the best first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from math import gcd
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretrain.config.load import dump
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, expert_ranks, plan_layout
from pretrain.plan.device import Device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import StackFactor, constants_on
from pretrain.plan.estimate.held import HeldBytes, held_bytes
from pretrain.plan.estimate.seconds import StepSeconds, fastest_first, step_seconds
from pretrain.plan.estimate.step_settings import RECOMPUTE
from pretrain.run_length.ramp import batch_sizes

Target = Literal["throughput", "cost", "memory"]
_MOST_TENSOR, _MOST_CONTEXT, _MOST_VIRTUAL, _MOST_MICRO = 16, 16, 12, 64
_GIB = 2**30
SAFE_MEMORY_SHARE = 0.9
"""Share of the memory above which a layout that is estimated to fit may not: one in eight published peaks is further
off than this margin."""
_LAYOUTS: dict[tuple[str, bool, bool, int, int, int], list[Layout]] = {}


@dataclass(frozen=True)
class Option:
    """One choice with its estimates."""

    choice: LayoutChoice
    seconds: float
    """seconds of a step"""
    parts: dict[str, float]
    """parts of `seconds` by name"""
    held: dict[str, float]
    """parts by name of the bytes that the fullest rank holds"""
    bottleneck: str
    """the largest cost besides the computation that the model needs: compute, bubble, links or memory"""

    @property
    def held_bytes(self) -> float:
        return sum(self.held.values())


@dataclass(frozen=True)
class SearchResult:
    """Result of a search. `options`: the layouts that fit, the best first."""

    options: list[Option]
    judged: int
    smallest: Option
    """option that holds the fewest bytes, whether it fits or not"""
    with_headroom: Option | None = None
    """best option that leaves a tenth of the memory free; None if none does, or if the first option does"""


def search(
    config: RunConfig,
    device: Device,
    gpus: int,
    *,
    per_node: int,
    stack: StackFactor,
    target: Target = "throughput",
    top: int = 10,
    only: LayoutChoice | None = None,
) -> SearchResult:
    """Searches the layouts of `config` on `gpus` devices. `only`: the one choice to judge, shown whether it fits or
    not. Raises ConfigError where no layout is legal."""
    choices = list(every_choice(config, gpus, per_node)) if only is None else [only]
    if not choices:
        raise ConfigError(no_layout(config, gpus, per_node))
    seconds, held, limit = estimate(config, device, per_node, choices, stack)
    bytes_held = held.fullest
    fitting = np.flatnonzero((bytes_held <= limit) | (only is not None))
    if target == "memory":
        order = fitting[np.lexsort((seconds.total[fitting], bytes_held[fitting]))]
    else:
        shared = np.array(
            [config.batch.sequences / (choice.layout.data * choice.micro_sequences) for choice in choices]
        )
        order = fitting[fastest_first(seconds.total[fitting], shared[fitting])]
    has_headroom = bool(len(order)) and bytes_held[order[0]] < 0.7 * limit
    options = [option(choices[i], seconds, held, i, has_headroom) for i in _differing(choices, order, top)]
    smallest = int(bytes_held.argmin())
    safe = order[bytes_held[order] <= SAFE_MEMORY_SHARE * limit]
    with_headroom = (
        option(choices[safe[0]], seconds, held, int(safe[0]), False) if len(safe) and safe[0] != order[0] else None
    )
    return SearchResult(options, len(choices), option(choices[smallest], seconds, held, smallest, False), with_headroom)


def estimate(
    config: RunConfig, device: Device, per_node: int, choices: Sequence[LayoutChoice], stack: StackFactor
) -> tuple[StepSeconds, HeldBytes, float]:
    """Seconds and bytes of each choice, the latter on its fullest stage, all on the same number of devices, and the
    bytes of memory of a device."""
    c = constants_on(device, min(per_node, choices[0].layout.world))
    seconds = {field.name: np.empty(len(choices)) for field in fields(StepSeconds)}
    held = {field.name: np.empty((len(choices), 1)) for field in fields(HeldBytes)}
    for indices, work in WorkloadBuilder(config, device, per_node).build_in_parts(choices):
        for into, found in ((seconds, step_seconds(work, c, stack.factor)), (held, held_bytes(work, c).on_fullest)):
            for name, values in into.items():
                values[indices] = getattr(found, name)
    return StepSeconds(**seconds), HeldBytes(**held), device.memory_gib * _GIB


def option(choice: LayoutChoice, seconds: StepSeconds, held: HeldBytes, index: int, has_headroom: bool) -> Option:
    """Option for the choice at `index` of the estimates. `has_headroom`: whether memory limits nothing."""
    parts = {name: float(getattr(seconds, name)[index]) for name in seconds.__dataclass_fields__}
    sizes = held.fullest_stage(index)
    links = sum(parts[name] for name in ("tensor", "context", "expert", "pipeline", "replicas"))
    losses = {"compute": 0.1 * sum(parts.values()), "bubble": parts["bubble"], "links": links}
    if not has_headroom:  # with more memory, less would be recomputed, or micro-batches would be larger
        losses["memory"] = parts["recompute"]
    return Option(choice, sum(parts.values()), parts, sizes, max(losses, key=lambda name: losses[name]))


def every_choice(config: RunConfig, gpus: int, per_node: int) -> Iterator[LayoutChoice]:
    """Every layout that `plan_layout` allows, with experts that tensor ranks split or not, and each number of expert
    ranks, ZeRO stage, kind of recomputation and micro-batch size that it can have. ZeRO 0 and DeepSpeed's stage 1 are
    left out: stage 1 of megatron-core's is as fast and holds less."""
    common = gcd(*batch_sizes(config.batch))
    for layout in _layouts_of(config, gpus, per_node, common):
        group = _group(layout.data, layout.pipeline, layout.virtual)
        split = [replace(one, expert=ranks) for one in _splits(config, layout) for ranks in expert_ranks(config, one)]
        shared = [replace(one, zero=1) for one in split]
        if layout.replicas > 1:
            shared += [replace(one, zero=2, zero_engine="deepspeed") for one in split]
            shared += [replace(layout, zero=3, zero_engine="deepspeed")]  # which splits experts itself
        share = config.batch.sequences // group
        micros = [size for size in range(1, min(_MOST_MICRO, share) + 1) if share % size == 0]
        for one, recompute, micro in product(shared, RECOMPUTE, micros):
            yield LayoutChoice(one, micro, recompute)


def _splits(config: RunConfig, layout: Layout) -> list[Layout]:
    """A layout whose tensor ranks split experts, and one whose tensor ranks do not: under sequence parallelism, without
    which that sends no less."""
    unsplit = config.model.experts is not None and layout.sequence
    return [layout, replace(layout, unsplit_experts=True)] if unsplit else [layout]


def _layouts_of(config: RunConfig, gpus: int, per_node: int, common: int) -> list[Layout]:
    """Cached `every_layout`, computed once for all batches of a model that have the same divisor."""
    settings = config.batch.short is not None, config.distillation.model is not None
    key = (dump(config.model), *settings, gpus, per_node, common)
    if key not in _LAYOUTS:
        _LAYOUTS[key] = list(every_layout(config, gpus, per_node, common))
    return _LAYOUTS[key]


def every_layout(config: RunConfig, gpus: int, per_node: int, common: int) -> Iterator[Layout]:
    """Every legal layout, without ZeRO and expert ranks. `common`: the greatest common divisor of the batch's sizes.
    `plan_layout` decides; layouts that are obviously illegal are skipped first, as checking them would take most of the
    time."""
    layers, unequal = sum(config.model.stacks), config.model.is_encoder_decoder or config.model.mtp is not None
    for tensor in _divisors(gpus, min(_MOST_TENSOR, per_node)):
        for context in _divisors(gpus // tensor, _MOST_CONTEXT):
            for pipeline in _divisors(gpus // tensor // context, layers):
                data = gpus // tensor // context // pipeline
                for virtual in range(1, min(_MOST_VIRTUAL, layers // pipeline) + 1) if pipeline > 1 else (1,):
                    if common % _group(data, pipeline, virtual):
                        continue
                    # Stages are equal where they can be, and then chunks are, too; those of two models always.
                    divides = config.distillation.model is not None or layers % pipeline == 0
                    if layers % (pipeline * virtual) and divides and not unequal:
                        continue
                    for sequence in (False, True) if tensor > 1 else (False,):
                        yield from _legal(
                            config,
                            gpus,
                            tensor=tensor,
                            context=context,
                            pipeline=pipeline,
                            virtual=virtual,
                            sequence=sequence,
                        )


def _group(data: int, pipeline: int, virtual: int) -> int:
    """Number of micro-batches that a global batch must be a multiple of."""
    return data * (pipeline if virtual > 1 else 1)


def _legal(
    config: RunConfig, gpus: int, *, tensor: int, context: int, pipeline: int, virtual: int, sequence: bool
) -> Iterator[Layout]:
    sizes: dict[str, int | None] = {"tensor": tensor, "context": context, "pipeline": pipeline, "virtual": virtual}
    sizes |= {"sequence": sequence, "expert": 1, "expert_tensor": None}
    parallel = config.parallel.model_copy(update=sizes)
    try:
        yield plan_layout(config.model_copy(update={"parallel": parallel}), gpus, trains=False)
    except ConfigError:
        return


def no_layout(config: RunConfig, gpus: int, per_node: int) -> str:
    """Message that no layout is legal, with the nearest numbers of devices that have one."""
    batch = config.batch.sequences
    ramp = f" (and its ramp from {config.batch.ramp.start_sequences})" if config.batch.ramp else ""
    counts = [n for n in near_counts(gpus) if next(every_choice(config, n, per_node), None) is not None]
    hint = (
        f"the nearest numbers that have one are {' and '.join(f'{n:,}' for n in counts[:2])}" if counts else "use fewer"
    )
    settings = f"batch.sequences={batch:,}{ramp} and model.layers={config.model.layers}"
    return f"{gpus:,} GPUs have no legal layout with {settings}: {hint}"


def too_large(config: RunConfig, device: Device, gpus: int, per_node: int, result: SearchResult) -> str:
    """Message that no legal layout fits, with the largest part of the layout that holds the fewest bytes."""
    smallest, choice = result.smallest, result.smallest.choice
    part = max(smallest.held, key=lambda name: smallest.held[name])
    return (
        f"none of {result.judged:,} layouts fits in {device.memory_gib:g} GiB: {choice.layout} with "
        f"batch.micro_sequences={choice.micro_sequences} and parallel.recompute={choice.recompute} holds least, "
        f"{smallest.held_bytes / _GIB:,.1f} GiB, most of it {part} ({smallest.held[part] / _GIB:,.1f}): use more than "
        f"{gpus:,} devices, larger ones, or a smaller model"
    )


def near_counts(gpus: int) -> list[int]:
    """Numbers of devices near `gpus`, the nearest first; above 16 they differ from it by multiples of 8."""
    step = 8 if gpus > 16 else 1
    near = [n for n in _smooth(2 * gpus) if n >= gpus / 4 and n != gpus and (n - gpus) % step == 0]
    return sorted(near, key=lambda n: (abs(n - gpus), n))[:24]


def _differing(choices: Sequence[LayoutChoice], order: NDArray[np.intp], top: int) -> list[int]:
    """First `top` indices of `order`, no two with the same layout."""
    layouts, indices = set(), []
    for index in map(int, order):
        layout = choices[index].layout
        if layout not in layouts:
            layouts.add(layout)
            indices.append(index)
        if len(indices) == top:
            break
    return indices


def _smooth(most: int) -> list[int]:
    """Numbers up to `most` without a prime factor above 7."""
    numbers = [1]
    for prime in (2, 3, 5, 7):
        for number in numbers:  # the list grows during the loop, by all powers of the prime
            if number * prime <= most:
                numbers.append(number * prime)
    return numbers


def _divisors(number: int, most: int) -> list[int]:
    return [size for size in range(1, min(number, most) + 1) if number % size == 0]
