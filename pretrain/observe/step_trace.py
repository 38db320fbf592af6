"""Where a step goes, read from a trace of torch's profiler. Without torch.

    split = split_of(load_trace(Path("runs/book/profile/step-00000020-rank-00000.json.gz")))
    split.seconds       # {"matrix products": 0.12, "exchange: tensor": 0.03, ...}, which add up to split.total

Of a step on a GPU each instant belongs to the kernel that runs then: to an exchange only where nothing else runs, and
to `waiting` where nothing does. Of a step on a CPU each instant of the main thread belongs to the innermost operator or
range. An exchange includes waiting for the other ranks of its group.
"""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain.errors import ConfigError
from pretrain.layout.group_names import group_name

PRODUCTS, ATTENTION, OPTIMIZER, DATA = "matrix products", "attention", "optimizer", "data"
WAITING, OTHER, EXCHANGE = "waiting", "other", "exchange: "
EXCHANGE_RANGE = "exchange/"
"""Prefix of the ranges around exchanges, which the name of a group follows."""

_STEP = re.compile(r"step \d+")
_OF_ATTENTION = re.compile(r"scaled_dot_product|flash|fmha|efficient_attention|attention_kernel", re.IGNORECASE)
_OF_PRODUCTS = re.compile(r"^aten::(mm|addmm|bmm|baddbmm|_scaled_mm|_grouped_mm|linear|matmul)$")
_PRODUCT_KERNELS = re.compile(r"gemm|cutlass|cublas|nvjet|xmma|splitk", re.IGNORECASE)
_ATTENTION_MODULE = re.compile(r"module/.*(core_attention|attention_core)(\.|$)")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class StepSplit:
    """Seconds of one step of one rank, by what they went to."""

    rank: int
    world: int
    on_gpu: bool
    seconds: Mapping[str, float]
    hidden_s: float
    """exchanges behind other work of the device, which are no part of `seconds`"""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def load_trace(path: Path) -> dict[str, Any]:
    """Raises ConfigError for a file that is no trace of a profiled step."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            trace: dict[str, Any] = json.load(file)
        _step_of(trace["traceEvents"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, StopIteration) as error:
        raise ConfigError(f"{path} is no trace of a profiled step ({type(error).__name__})") from None
    return trace


def _step_of(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next(event for event in events if event.get("cat") == "user_annotation" and _STEP.match(event["name"]))


def split_of(trace: Mapping[str, Any]) -> StepSplit:
    """Split of a loaded trace's step: its seconds by what they went to."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    step = _step_of(events)
    info = trace.get("distributedInfo", {})
    begin, end = step["ts"], step["ts"] + step["dur"]
    on_gpu = any(event.get("cat") == "kernel" for event in events)
    split = _device_seconds if on_gpu else _host_seconds
    seconds, hidden = split(events, step["tid"], begin, end)
    return StepSplit(
        rank=info.get("rank", 0),
        world=info.get("world_size", 1),
        on_gpu=on_gpu,
        seconds={name: value / 1e6 for name, value in seconds.items()},
        hidden_s=hidden / 1e6,
    )


def _host_seconds(
    events: Sequence[Mapping[str, Any]], thread: int, begin: float, end: float
) -> tuple[dict[str, float], float]:
    """Microseconds of a thread by category: self times of nested events."""
    inside = [
        event
        for event in events
        if event["tid"] == thread and begin <= event["ts"] < end and event.get("cat") in ("cpu_op", "user_annotation")
        if not event["name"].startswith("gloo:")  # lasts until it is waited for, across others
    ]
    inside.sort(key=lambda event: (event["ts"], -event["dur"]))
    attention = _sequence_numbers(inside)
    seconds: dict[str, float] = defaultdict(float)
    stack: list[tuple[float, str]] = []  # (end, category)
    now = begin
    for event in inside:
        now = _leave(stack, seconds, now, event["ts"])
        category = _category(event, stack[-1][1] if stack else OTHER, attention)
        stack.append((min(event["ts"] + event["dur"], stack[-1][0] if stack else end), category))
    _leave(stack, seconds, now, end)
    return dict(seconds), 0.0


def _leave(stack: list[tuple[float, str]], seconds: dict[str, float], now: float, until: float) -> float:
    """Accounts for the time up to `until`, and leaves the events that end before."""
    while stack and stack[-1][0] <= until:
        finish, category = stack.pop()
        seconds[category] += max(0.0, finish - now)
        now = max(now, finish)
    if stack:
        seconds[stack[-1][1]] += max(0.0, until - now)
    return max(now, until)


def _category(event: Mapping[str, Any], around: str, attention: frozenset[int]) -> str:
    """Category of an event within one of the category `around`, which is that of what is in no category of its own."""
    name: str = event["name"]
    if name.startswith(EXCHANGE_RANGE):
        return EXCHANGE + name.removeprefix(EXCHANGE_RANGE)
    if around not in (OTHER, WAITING, PRODUCTS):  # also products within attention or the optimizer
        return around
    if name == "step/optimizer":
        return OPTIMIZER
    if name == "step/data":
        return DATA
    if name == "step/pipeline":
        return WAITING
    if name.startswith("c10d::"):
        return f"{EXCHANGE}other"
    if _OF_ATTENTION.search(name) or _ATTENTION_MODULE.match(name) or _backward_of(event, attention):
        return ATTENTION
    if _OF_PRODUCTS.match(name) or name.startswith("LinearWithGradAccumulation"):
        return PRODUCTS
    return around


def _sequence_numbers(inside: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Numbers that autograd gave to operators within modules of attention: those of their backward operators."""
    spans = [(one["ts"], one["ts"] + one["dur"]) for one in inside if _ATTENTION_MODULE.match(one["name"])]
    numbers, at = set(), 0
    for event in inside:
        while at < len(spans) and spans[at][1] <= event["ts"]:
            at += 1
        if at < len(spans) and spans[at][0] <= event["ts"] and (number := _forward_number(event)) is not None:
            numbers.add(number)
    return frozenset(numbers)


def _forward_number(event: Mapping[str, Any]) -> int | None:
    arguments = event.get("args", {})
    return arguments.get("Sequence number") if not arguments.get("Fwd thread id") else None


def _backward_of(event: Mapping[str, Any], numbers: frozenset[int]) -> bool:
    name = event["name"]
    backward = name.startswith("autograd::engine::evaluate_function") and "AccumulateGrad" not in name
    return backward and event.get("args", {}).get("Sequence number") in numbers


def _device_seconds(
    events: Sequence[Mapping[str, Any]], thread: int, begin: float, end: float
) -> tuple[dict[str, float], float]:
    """Microseconds of the device by category, and those of exchanges that other kernels hide."""
    optimizer = [(one["ts"], one["ts"] + one["dur"]) for one in events if one["name"] == "step/optimizer"]
    launched = {
        one["args"]["correlation"]: one["ts"]
        for one in events
        if one.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in one.get("args", {})
    }
    edges: list[tuple[float, int, str]] = []
    for event in events:
        if event.get("cat") in _ON_DEVICE:
            at = launched.get(event.get("args", {}).get("correlation"), -1.0)
            of_optimizer = any(first <= at < last for first, last in optimizer)
            first, last = max(begin, event["ts"]), min(end, event["ts"] + event["dur"])
            if first < last:
                category = _kernel_category(event, of_optimizer)
                edges += [(first, 1, category), (last, -1, category)]
    return _swept(sorted(edges), begin, end)


def _kernel_category(event: Mapping[str, Any], of_optimizer: bool) -> str:
    name = event["name"]
    if name.lower().startswith("nccl"):
        return EXCHANGE + group_name(event.get("args", {}).get("Process Group Description", "other"))
    if of_optimizer:
        return OPTIMIZER
    if _OF_ATTENTION.search(name):
        return ATTENTION
    return PRODUCTS if _PRODUCT_KERNELS.search(name) else OTHER


def _swept(edges: Sequence[tuple[float, int, str]], begin: float, end: float) -> tuple[dict[str, float], float]:
    seconds: dict[str, float] = defaultdict(float)
    running: dict[str, int] = {}
    now, hidden = begin, 0.0
    for at, change, category in [*edges, (end, 0, OTHER)]:
        exchanges = [name for name in running if name.startswith(EXCHANGE)]
        others = [name for name in running if not name.startswith(EXCHANGE)]
        seconds[(others or exchanges or [WAITING])[0]] += at - now
        hidden += at - now if others and exchanges else 0.0
        now = at
        running[category] = running.get(category, 0) + change
        if not running[category]:
            del running[category]
    return {name: value for name, value in seconds.items() if value}, hidden


def ordered(names: Iterable[str]) -> list[str]:
    """Categories in the order of a table."""
    exchanges = sorted({name for name in names if name.startswith(EXCHANGE)})
    return [PRODUCTS, ATTENTION, *exchanges, OPTIMIZER, DATA, WAITING, OTHER]
