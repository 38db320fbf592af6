"""Rehearses one rank: builds the engine as that rank and makes two steps, on tensors without data. Runs in a process of
its own, in which torch is patched (`patches.py`)."""

import os
import re
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from data_pipeline.batch import Batch
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine import device
from pretrain.engine.base import GlobalPart
from pretrain.engine.make import make_engine
from pretrain.layout.layout import Layout
from pretrain.plan.device import Device
from pretrain.rehearse import patches
from pretrain.rehearse.exchange import Log
from pretrain.rehearse.recorder import Recorder
from pretrain.rehearse.unmeasured import MOST_COMMUNICATORS, unmeasured_bytes

STATE = ("weights", "gradients", "optimizer")
_LARGEST = 8
"""most kinds of tensors that are named"""
_NUMBERS = re.compile(r"\.\d+(?=\.|$)")
_STEP_PARTS = ("reduce", "norm", "scale", "update")
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class EqualTensors:
    """Equal tensors that live at the peak."""

    count: int
    total_bytes: int
    category: str
    operator: str
    """torch's operator that made them"""
    module: str
    """module whose forward or backward pass made them, with * for the numbers of layers"""
    line: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Exchanges:
    """Exchanges of one kind in one group of ranks, in one step."""

    group: str
    kind: str
    ranks: int
    device: str
    count: int
    total_bytes: int
    sent_bytes: float
    """bytes that this rank sends if the group is a ring"""

    @property
    def is_sent(self) -> bool:
        """Whether the rank's device sends something."""
        return self.device == "cuda" and self.kind not in ("recv", "broadcast")


@dataclass(frozen=True, kw_only=True)
class RankRehearsal:
    """What one rank does in a step: the first one, where a field does not say otherwise."""

    rank: int
    coordinates: tuple[int, int, int, int]
    """tensor, context, data and pipeline rank"""
    problem: str | None = None
    """why the rank could not be built, or make its steps"""
    parameters: int = 0
    build_peak_bytes: int = 0
    state_bytes: Mapping[str, int] = field(default_factory=dict)
    """weights, gradients, optimizer, and other memory that lives once the engine is built"""
    peak_bytes: int = 0
    peak_phase: str = ""
    reserved_bytes: int = 0
    """most memory that torch's caching allocator reserves, for the build and both steps"""
    allocator_retries: int = 0
    """how often it had to return memory to the driver first, as the device was full"""
    unmeasured_bytes: int = 0
    """constant for what no rehearsal sees: libraries' workspaces, NCCL's buffers, the CUDA context"""
    at_peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """bytes at the peak: weights, gradients, optimizer, and other memory by the phase that allocated it"""
    phase_peak_bytes: Mapping[str, int] = field(default_factory=dict)
    largest: tuple[EqualTensors, ...] = ()
    """largest tensors at the peak, without the training state"""
    flops: Mapping[str, int] = field(default_factory=dict)
    exchanges: tuple[Exchanges, ...] = ()
    exchange_log: Log = field(default_factory=dict)
    """exchanges and waits for them in order, of the build and of each step"""
    operators: int = 0
    first_waits: Mapping[str, int] = field(default_factory=dict)
    """what makes the host wait in the first step, with the line and how often"""
    waits: Mapping[str, int] = field(default_factory=dict)
    """what makes the host wait in the second step, and so in every later one"""
    without_kernel: Mapping[str, int] = field(default_factory=dict)
    """operators without a CUDA kernel, with the line and how often"""
    left_bytes: int = 0
    """memory that the second step left behind"""
    build_s: float = 0.0
    step_s: float = 0.0
    cpu_s: float = 0.0
    host_bytes: int = 0

    @property
    def sent_bytes(self) -> dict[str, float]:
        """Bytes that the rank's device sends in a step, by group of ranks."""
        groups = dict.fromkeys(one.group for one in self.exchanges if one.is_sent)
        return {
            group: sum(one.sent_bytes for one in self.exchanges if one.group == group and one.is_sent)
            for group in groups
        }


def rehearse_rank(config: RunConfig, layout: Layout, rank: int, hardware: Device) -> RankRehearsal:
    """Rehearses `rank` of `layout`. Call it once in a process."""
    recorder = Recorder(hardware.memory_gib * 2**30 - unmeasured_bytes(MOST_COMMUNICATORS))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(layout.world), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    patches.install(config, hardware, recorder)
    device.set_max_connections(config.parallel)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world)
    found: dict[str, Any] = {}
    action = "be built"
    try:
        # DeepSpeed prints; the command's output is a report.
        with redirect_stdout(sys.stderr), FakeTensorMode(allow_non_fake_inputs=True), recorder:
            begun = time.perf_counter()
            engine: Any = make_engine(config, layout, kernels=patches.kernels)
            found["build_s"] = time.perf_counter() - begun
            found |= _built(recorder, engine)
            _name_phases(recorder, engine.sharding)
            recorder.modules.follow(engine.sharding.chunks)
            logs = found["exchange_log"] = {"build": tuple(recorder.exchange_log)}
            action = "make its step"
            rows = SyntheticStream(config).batch(0, config.batch.sequences, engine.data_rank, engine.data_world)
            batch = _with_full_rows(rows)
            recorder.phase = "forward"
            recorder.clear()
            begun = time.perf_counter()
            engine.train_step(batch, config.optimizer.learning_rate, 1)
            found["step_s"] = time.perf_counter() - begun
            found |= _counted(recorder)
            logs["first step"] = tuple(recorder.exchange_log)
            before_bytes = recorder.memory.live_bytes
            recorder.clear()
            engine.train_step(batch, config.optimizer.learning_rate, 2)
            found |= {"waits": dict(recorder.waits), "left_bytes": recorder.memory.live_bytes - before_bytes}
            logs["second step"] = tuple(recorder.exchange_log)
            allocator = recorder.memory.allocator
            found |= {"reserved_bytes": allocator.reserved_peak_bytes, "allocator_retries": allocator.retries}
            found["unmeasured_bytes"] = unmeasured_bytes(len(recorder.communicators))
    except Exception as error:  # any: it would end the run
        found["problem"] = f"rank {rank} cannot {action}: {_sentence(error)}"
    return RankRehearsal(
        rank=rank,
        coordinates=layout.coordinates(rank),
        cpu_s=time.process_time(),
        host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **found,
    )


def _with_full_rows(batch: Batch) -> Batch:
    """Rows without padding, packed ones of a single document: the most memory and work."""
    if batch.documents is not None:
        batch = replace(batch, documents=np.zeros_like(batch.documents))
    if batch.attention_mask is not None:
        batch = replace(batch, attention_mask=np.ones_like(batch.attention_mask))
    return batch


def _built(recorder: Recorder, engine: Any) -> dict[str, Any]:
    values = [parameter.value for parameter in engine.parameters]
    recorder.memory.classify("gradients", _gradient_buffers(engine.sharding))
    recorder.memory.classify("optimizer", _pieces(engine.state()))
    recorder.memory.classify("weights", values)
    recorder.memory.classify("weights", _pieces(engine.weights_in_use()))
    return {
        "parameters": sum(int(getattr(value, "ds_numel", value.numel())) for value in values),
        "build_peak_bytes": recorder.memory.peak_bytes,
        "state_bytes": dict(recorder.memory.categories()),
    }


def _pieces(parts: Mapping[str, GlobalPart]) -> Iterator[Tensor]:
    for part in parts.values():
        yield from (piece.value for piece in part.pieces)


def _gradient_buffers(sharding: Any) -> Iterator[Tensor]:
    """The buffers in which megatron-core accumulates gradients. (DeepSpeed makes its own in each step.)"""
    for chunk in sharding.chunks:
        buffers = getattr(chunk, "buffers", None)
        for buffer in buffers if isinstance(buffers, list) else ():
            yield buffer.grad_data


def _name_phases(recorder: Recorder, sharding: Any) -> None:
    def in_phase(name: str) -> Any:
        call = getattr(sharding, name)

        def named(*args: Any, **kwargs: Any) -> Any:
            with recorder.in_phase(name):
                return call(*args, **kwargs)

        return named

    for name in _STEP_PARTS:
        setattr(sharding, name, in_phase(name))


def _counted(recorder: Recorder) -> dict[str, Any]:
    by_category: Counter[str] = Counter()
    equal: dict[tuple[Any, ...], list[int]] = {}
    for one in recorder.memory.at_peak:
        by_category[one.category] += one.size_bytes
        module = _NUMBERS.sub(".*", one.module)
        entry = equal.setdefault((one.category, one.operator, module, one.line, one.shape, one.dtype), [0, 0])
        entry[0] += 1
        entry[1] += one.size_bytes
    beside = sorted((item for item in equal.items() if item[0][0] not in STATE), key=lambda item: -item[1][1])
    largest = tuple(
        EqualTensors(
            count=n,
            total_bytes=size,
            category=category,
            operator=operator,
            module=module,
            line=line,
            shape=shape,
            dtype=dtype,
        )
        for (category, operator, module, line, shape, dtype), (n, size) in beside[:_LARGEST]
    )
    exchanges = tuple(
        Exchanges(**vars(kind), count=int(n), total_bytes=int(size), sent_bytes=sent)
        for kind, (n, size, sent) in sorted(recorder.exchanges.items())
    )
    return {
        "peak_bytes": recorder.memory.peak_bytes,
        "peak_phase": recorder.memory.peak_phase,
        "at_peak_bytes": dict(by_category),
        "phase_peak_bytes": dict(recorder.memory.phase_peaks),
        "largest": largest,
        "flops": dict(recorder.flops),
        "exchanges": exchanges,
        "operators": recorder.operators,
        "first_waits": dict(recorder.waits),
        "without_kernel": dict(recorder.without_kernel),
    }


def _sentence(error: Exception) -> str:
    """The error in one line, with the innermost line of the project that led to it."""
    text = str(error).strip().splitlines()
    paths = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    own = [
        (path, line)
        for path, line in paths
        if _ROOT / "pretrain" in path.parents and path.parent != Path(__file__).parent
    ]
    line = f" ({own[-1][0].relative_to(_ROOT)}:{own[-1][1]})" if own else ""
    return f"{type(error).__name__}: {text[0] if text else 'no message'}{line}"
