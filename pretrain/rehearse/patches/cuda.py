"""Answers to what Python code asks of torch.cuda, for a device that is not there. There is one stream, on which
everything is done at once."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pretrain.plan.device import Device
from pretrain.rehearse.patches.attributes import no_op, set_attributes
from pretrain.rehearse.recorder import DEVICE, Recorder

_GIB = 2**30
_CAPABILITIES = {"volta": (7, 0), "ampere": (8, 0), "ada": (8, 9), "hopper": (9, 0), "blackwell": (10, 0)}
_GROUPED_MM_MAJORS = (9, 10)
"""major compute capabilities that torch has a kernel for F.grouped_mm for; on others the host reads how many rows each
expert has and multiplies one after the other (`_grouped_mm_fallback` in GroupedBlas.cpp)"""


def replace_cuda(hardware: Device, recorder: Recorder) -> None:
    """Has torch.cuda answer as on `hardware`."""
    _replace_device(hardware, recorder)
    _replace_streams(recorder.wait)
    _replace_random_state(hardware.devices)
    _replace_memory(recorder)


def _replace_device(hardware: Device, recorder: Recorder) -> None:
    capability = _CAPABILITIES.get(hardware.generation, (9, 0))
    if capability[0] not in _GROUPED_MM_MAJORS:
        recorder.waiting.add(torch.ops.aten._grouped_mm.default)
    properties = SimpleNamespace(
        total_memory=int(hardware.memory_gib * _GIB),
        name=hardware.driver,
        major=capability[0],
        minor=capability[1],
        multi_processor_count=hardware.processors,
    )
    set_attributes(
        torch.cuda,
        is_available=lambda: True,
        is_initialized=lambda: False,  # or torch asks the driver
        _lazy_init=no_op(),
        _lazy_call=lambda call, **kwargs: call(),
        device_count=lambda: hardware.devices,
        current_device=lambda: DEVICE,  # an index alone would be that of a device that torch was built with
        set_device=no_op(),
        get_device_capability=lambda device=None: capability,
        get_device_name=lambda device=None: hardware.driver or "",
        get_device_properties=lambda device=None: properties,
        is_bf16_supported=lambda *args, **kwargs: True,
        nvtx=SimpleNamespace(range_push=no_op(), range_pop=no_op(), range=lambda *args, **kwargs: nullcontext()),
    )


def _replace_streams(wait: Callable[[str], None]) -> None:
    class FakeEvent:
        record, wait = no_op(), no_op()

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            wait("event.synchronize")

        def elapsed_time(self, end: object) -> float:
            return 1.0

    class FakeStream:
        device, cuda_stream = DEVICE, 0
        wait_stream = wait_event = no_op()

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def synchronize(self) -> None:
            wait("stream.synchronize")

        def record_event(self, event: Any = None) -> Any:
            return event or FakeEvent()

        def is_capturing(self) -> bool:
            return False

        def query(self) -> bool:
            return True

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def __eq__(self, other: object) -> bool:
            return isinstance(other, FakeStream)

        def __hash__(self) -> int:
            return 1

    stream = FakeStream()
    set_attributes(
        torch.cuda,
        synchronize=lambda device=None: wait("cuda.synchronize"),
        Stream=FakeStream,
        Event=FakeEvent,
        current_stream=lambda device=None: stream,
        default_stream=lambda device=None: stream,
        stream=lambda stream: nullcontext(),
        set_stream=no_op(),
        is_current_stream_capturing=lambda: False,
    )
    set_attributes(torch.accelerator, current_stream=lambda device=None: stream)


def _replace_random_state(devices: int) -> None:
    random_state = torch.default_generator.get_state()

    class FakeGenerator:
        set_state = manual_seed = graphsafe_set_state = no_op()

        def get_state(self) -> Tensor:
            return random_state

        def clone_state(self) -> Any:
            return self

        graphsafe_get_state = clone_state

    for owner in (torch.cuda, torch.cuda.random):
        set_attributes(owner, get_rng_state=lambda device="cuda": random_state, set_rng_state=no_op())
    set_attributes(
        torch.cuda,
        manual_seed=no_op(),
        manual_seed_all=no_op(),
        default_generators=(FakeGenerator(),) * devices,
    )


def _replace_memory(recorder: Recorder) -> None:
    set_attributes(
        torch.cuda,
        empty_cache=recorder.memory.allocator.return_segments,
        reset_peak_memory_stats=no_op(),
    )
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(torch.cuda, name, lambda device=None: 0)
