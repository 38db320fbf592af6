"""Named ranges of a step for torch's profiler and for Nsight: phases by megatron-core's own timers, modules by hooks.

    with named_ranges(chunks): ...      # steps inside have ranges; outside there are neither timers nor hooks

| Range | Covers |
|---|---|
| `step/forward`, `step/backward` | one micro-batch on one chunk, recomputation within backward |
| `step/pipeline` | sending to and receiving from other stages |
| `step/exchange` | gradients between data and context ranks, after the last micro-batch |
| `step/optimizer` | norm, clipping and update |
| `exchange/GROUP` | a call of the process group, without waiting for its end where it is asynchronous |
| `module/NAME` | forward of a module, by its name in the network |

The loop adds `step/data`, and the engine `step/exchange` and `step/optimizer`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch.distributed as dist
from megatron.core.utils import get_model_config
from torch import nn
from torch.profiler import record_function

from pretrain.layout.group_names import group_name
from pretrain.observe.step_trace import EXCHANGE_RANGE

_PHASES = {"forward-compute": "step/forward", "backward-compute": "step/backward"}
_PARTS = {"grads": "step/exchange", "send": "step/pipeline", "recv": "step/pipeline"}
"""parts of names of megatron-core's timers; others have no range"""
_EXCHANGES = (
    *("allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "allgather_into_tensor_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base"),
    *("all_gather_single", "all_gather_single_coalesced", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    "all_to_all_single",
    *("broadcast", "reduce", "gather", "scatter", "send", "recv", "barrier"),
)


@contextmanager
def named_ranges(chunks: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, phases and modules of the chunks of all models are ranges."""
    configs = {id(config): config for config in map(get_model_config, chunks)}
    before = {key: config.timers for key, config in configs.items()}
    timers = _Timers()
    calls = {name: vars(dist.ProcessGroup)[name] for name in _EXCHANGES}  # as they are to be restored
    handles = [handle for chunk in chunks for handle in _hooked(chunk)]
    for config in configs.values():
        config.timers = timers
    for name in calls:
        setattr(dist.ProcessGroup, name, _named(getattr(dist.ProcessGroup, name)))
    try:
        yield
    finally:
        for key, config in configs.items():
            config.timers = before[key]
        for name, call in calls.items():
            setattr(dist.ProcessGroup, name, call)
        for handle in handles:
            handle.remove()


def _named(call: Callable[..., Any]) -> Callable[..., Any]:
    """A method of process groups whose calls are ranges with the group's name."""

    @wraps(call)
    def exchange(group: dist.ProcessGroup, *arguments: Any, **named: Any) -> Any:
        with record_function(EXCHANGE_RANGE + group_name(group.group_desc)):
            return call(group, *arguments, **named)

    return exchange


class _Timers:
    """Replacement for megatron-core's timers: those that are started and stopped are ranges."""

    def __init__(self) -> None:
        self._timers: dict[str, _Timer] = {}

    def __call__(self, name: str, log_level: int | None = None) -> "_Timer":
        if name not in self._timers:
            of_part = next((phase for part, phase in _PARTS.items() if part in name.split("-")), None)
            self._timers[name] = _Timer(_PHASES.get(name, of_part))
        return self._timers[name]


class _Timer:
    """One of them. `name`: of its ranges; None: it has none."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._open: list[record_function] = []

    def start(self, barrier: bool = False) -> None:
        """Begins a range. No barrier: the ranks of a profiled step are as far apart as those of any other."""
        if self._name is not None:
            self._open.append(record_function(self._name))
            self._open[-1].__enter__()

    def stop(self, barrier: bool = False) -> None:
        """Ends it."""
        if self._open:
            self._open.pop().__exit__(None, None, None)


def _hooked(chunk: nn.Module) -> Iterator[Any]:
    for name, module in chunk.named_modules():
        if name:
            running: list[record_function] = []
            yield module.register_forward_pre_hook(partial(_enter, running, f"module/{name}"))
            yield module.register_forward_hook(partial(_leave, running), always_call=True)


def _enter(running: list[record_function], name: str, module: nn.Module, inputs: Any) -> None:
    running.append(record_function(name))
    running[-1].__enter__()


def _leave(running: list[record_function], module: nn.Module, inputs: Any, output: Any) -> None:
    if running:
        running.pop().__exit__(None, None, None)
