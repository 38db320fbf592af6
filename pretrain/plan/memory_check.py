"""The check that a run fits in memory, which train, eval, verify and launch share.

Three estimates answer it, each a bound of the next: a lower bound in closed form (`memory_bound.py`), which also
refuses models of a billion layers at once; the bytes of tensors that a rank holds, activations included (`HeldBytes`);
and these with the overhead of libraries and the allocator. A run is refused by the first two, which are certain;
`pretrain plan` shows only layouts that fit by the third."""

import numpy as np

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.plan.device import find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import constants
from pretrain.plan.estimate.held import held_bytes
from pretrain.plan.memory_bound import check_bound
from pretrain.plan.planned import is_planned
from pretrain.plan.search import every_choice

_GIB = 2**30
WORKSPACE_BYTES = 64 * 2**20
"""workspaces of cuBLAS: 32 MiB on Hopper for each handle and stream, of which there are two (docs/benchmarks.md)"""
_DEVICE = "h100"  # held bytes do not depend on the speed of a device
_PER_NODE = 8


def check_memory(
    config: RunConfig, layout: Layout, available_bytes: float, *, host: bool = True, trains: bool = True
) -> None:
    """Raises ConfigError if a rank of `layout` with `available_bytes` of memory can't hold its share: naming the
    largest part, and what would fit. `host`: whether this is the memory of a host, which also holds batches and
    modules, and where activations are not counted."""
    check_bound(config, layout, available_bytes, host=host, trains=trains)
    train = config.finetune.train  # later stages, and layers behind a source encoder, keep less where they are frozen
    exact = train == "all" or (layout.pipeline == 1 and train != "source_encoder")
    if trains and not host and exact and is_planned(config):
        _check_held(config, layout, available_bytes)


def planned_bytes(config: RunConfig, layout: Layout) -> float | None:
    """Bytes that torch has allocated at most on the fullest rank of a run on GPUs, as planned: tensors and cuBLAS's
    workspaces. None: its models are not planned."""
    if not is_planned(config):
        return None
    choice = LayoutChoice(layout, config.batch.micro_sequences, config.parallel.recompute)
    work = WorkloadBuilder(config, find_device(_DEVICE), _PER_NODE).build([choice])
    return float(held_bytes(work, constants(), overhead=False).fullest[0]) + WORKSPACE_BYTES


def _check_held(config: RunConfig, layout: Layout, available_bytes: float) -> None:
    """Raises ConfigError if the tensors of the fullest rank take more than `available_bytes`. It names the layout of as
    many ranks that fits with the fewest changes, and of several the one that holds most."""
    builder = WorkloadBuilder(config, find_device(_DEVICE), _PER_NODE)
    choice = LayoutChoice(layout, config.batch.micro_sequences, config.parallel.recompute)
    held = held_bytes(builder.build([choice]), constants(), overhead=False)
    if held.fullest[0] <= available_bytes:
        return
    sizes = held.fullest_stage(0)
    largest = max(sizes, key=lambda name: sizes[name])
    shares = ", ".join(f"{name} {size / _GIB:,.1f}" for name, size in sizes.items() if size > 0.01 * held.fullest[0])
    raise ConfigError(
        f"this run does not fit in memory: {layout} holds {held.fullest[0] / _GIB:,.1f} GiB on its fullest rank "
        f"({shares}), most of it {largest}, of {available_bytes / _GIB:,.1f}; "
        f"{_nearest(config, builder, choice, available_bytes)}"
    )


def nearest_fit(config: RunConfig, layout: Layout, available_bytes: float, counted_bytes: float) -> str | None:
    """Words that name the layout of as many ranks that fits with the fewest changes, or say that none does. Of `layout`
    a rehearsal has counted `counted_bytes`: other layouts are taken to need as much more than planned. None: its
    models are not planned."""
    if not is_planned(config):
        return None
    builder = WorkloadBuilder(config, find_device(_DEVICE), _PER_NODE)
    choice = LayoutChoice(layout, config.batch.micro_sequences, config.parallel.recompute)
    planned = float(held_bytes(builder.build([choice]), constants()).fullest[0])
    return _nearest(config, builder, choice, available_bytes / max(1.0, counted_bytes / planned))


def _nearest(config: RunConfig, builder: WorkloadBuilder, current: LayoutChoice, available_bytes: float) -> str:
    choices = list(every_choice(config, current.layout.world, _PER_NODE))
    if not choices:
        return "use more devices, or a smaller model"
    held = np.empty(len(choices))
    for indices, work in builder.build_in_parts(choices):
        held[indices] = held_bytes(work, constants()).fullest
    fitting = [i for i in range(len(choices)) if held[i] <= available_bytes]
    if not fitting:
        return "no layout of as many devices fits: use more devices, or a smaller model"
    nearest = choices[min(fitting, key=lambda i: (len(_changes(current, choices[i])), -held[i]))]
    return f"the nearest that fits: {' '.join(_changes(current, nearest))}"


def _changes(current: LayoutChoice, target: LayoutChoice) -> list[str]:
    """Settings that turn one layout into the other."""
    settings = []
    for name in ("tensor", "context", "expert", "sequence", "pipeline", "virtual", "zero"):
        if getattr(current.layout, name) != (value := getattr(target.layout, name)):
            settings.append(f"parallel.{name}={str(value).lower()}")
    if current.layout.unsplit_experts != target.layout.unsplit_experts:
        settings.append(f"parallel.expert_tensor={target.layout.expert_tensor}")
    if current.layout.shards_by_deepspeed != target.layout.shards_by_deepspeed:
        settings.append(f"parallel.zero_engine={target.layout.zero_engine}")
    if current.recompute != target.recompute:
        settings.append(f"parallel.recompute={target.recompute}")
    if current.micro_sequences != target.micro_sequences:
        settings.append(f"batch.micro_sequences={target.micro_sequences}")
    return settings
