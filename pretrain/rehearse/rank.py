"""Rehearses one rank: builds the engine as that rank and runs its work (`work.py`), on tensors without data. Runs in a
process of its own, in which torch is patched (`patches.py`)."""

import os
import re
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from pretrain.attention.cache import LayerCache
from pretrain.config.run_config import RunConfig
from pretrain.engine import device
from pretrain.engine.base import GlobalPart, TeacherWeights
from pretrain.engine.make import make_engine
from pretrain.layout.layout import Layout
from pretrain.plan.device import Device
from pretrain.rehearse import patches
from pretrain.rehearse.exchange import Log
from pretrain.rehearse.loading import LoadCounts, load_without_data
from pretrain.rehearse.recorder import Recorder
from pretrain.rehearse.unmeasured import MOST_COMMUNICATORS, unmeasured_bytes
from pretrain.rehearse.work import RehearsedWork, WorkPart, parts_of

STATE = ("weights", "gradients", "optimizer")
CACHE = "cache"
"""category of the keys and values that generation reads again"""
_MEMORY_OF_ROWS = "memory/"
"""begins the names of what layers have read of the rows before"""
_LARGEST = 8
"""most kinds of tensors that are named"""
_MOST_CAUSES = 3
"""most causes that are named in one line"""
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
    """Exchanges of one kind in one group of ranks, in one part of the work."""

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
class PartCounts:
    """What one rank does in one part of its work, such as a step."""

    name: str
    repeats: bool
    """whether an equal part ran before, so that this one does what every later one will"""
    peak_bytes: int
    flops: Mapping[str, int]
    exchanges: tuple[Exchanges, ...]
    operators: int
    waits: Mapping[str, int]
    """what makes the host wait, with the line and how often"""

    @property
    def sent_bytes(self) -> dict[str, float]:
        """Bytes that the rank's device sends, by group of ranks."""
        return _sent_bytes(self.exchanges)


@dataclass(frozen=True, kw_only=True)
class RankRehearsal:
    """What one rank does: in the first part of its work (when training, a step), where a field does not say
    otherwise."""

    rank: int
    coordinates: tuple[int, int, int, int]
    """tensor, context, data and pipeline rank"""
    problem: str | None = None
    """why the rank could not be built, or do its work"""
    parameters: int = 0
    build_peak_bytes: int = 0
    build_reserved_bytes: int = 0
    """most memory that torch's caching allocator reserves while the engine is built"""
    state_bytes: Mapping[str, int] = field(default_factory=dict)
    """weights, gradients, optimizer, and other memory that lives once the engine is built"""
    peak_bytes: int = 0
    """peak of all parts"""
    peak_phase: str = ""
    reserved_bytes: int = 0
    """most memory that torch's caching allocator reserves after the build, in all parts and to load a checkpoint"""
    allocator_retries: int = 0
    """how often it had to return memory to the driver first, as the device was full"""
    unmeasured_bytes: int = 0
    """constant for what no rehearsal sees: libraries' workspaces, NCCL's buffers, the CUDA context"""
    at_peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """bytes at the peak: weights, gradients, optimizer, cache, and other memory by the phase that allocated it"""
    phase_peak_bytes: Mapping[str, int] = field(default_factory=dict)
    largest: tuple[EqualTensors, ...] = ()
    """largest tensors at the peak, without the training state"""
    flops: Mapping[str, int] = field(default_factory=dict)
    exchanges: tuple[Exchanges, ...] = ()
    exchange_log: Log = field(default_factory=dict)
    """exchanges and waits for them in order, of the build and of each part"""
    operators: int = 0
    first_waits: Mapping[str, int] = field(default_factory=dict)
    """what makes the host wait in the first part, with the line and how often"""
    waits: Mapping[str, int] = field(default_factory=dict)
    """what makes the host wait in the last part: when training, in the second step and so in every later one"""
    without_kernel: Mapping[str, int] = field(default_factory=dict)
    """operators without a CUDA kernel, with the line and how often in a part at most"""
    approximations: tuple[str, ...] = ()
    """what was counted as something else: names of `report.APPROXIMATIONS`"""
    left_bytes: int = 0
    """memory that the last part left behind"""
    load: LoadCounts | None = None
    """what loading a checkpoint takes; None: none was loaded"""
    parts: tuple[PartCounts, ...] = ()
    """each part of the work, in order"""
    build_s: float = 0.0
    step_s: float = 0.0
    cpu_s: float = 0.0
    host_bytes: int = 0

    @property
    def most_reserved_bytes(self) -> int:
        """Most memory that the allocator reserves at any time: this decides whether the rank fits."""
        return max(self.build_reserved_bytes, self.reserved_bytes)

    @property
    def needed_bytes(self) -> int:
        """Memory of a device that the rank needs."""
        return self.most_reserved_bytes + self.unmeasured_bytes

    @property
    def sent_bytes(self) -> dict[str, float]:
        """Bytes that the rank's device sends in the first part, by group of ranks."""
        return _sent_bytes(self.exchanges)


def rehearse_rank(
    config: RunConfig, layout: Layout, rank: int, hardware: Device, work: RehearsedWork | None = None
) -> RankRehearsal:
    """Rehearses `work` (default: training) of `rank` of `layout`. Call it once in a process."""
    work = work or RehearsedWork()
    config = config.model_copy(update={"health": config.health.model_copy(update={"replay_every": 0})})  # it needs data
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
            kernels = partial(patches.kernels, config, recorder)
            engine: Any = make_engine(config, layout, train=work.trains, kernels=kernels, hosts_backend="fake")
            found["build_s"] = time.perf_counter() - begun
            found |= _built(recorder, engine)
            recorder.modules.follow(engine.chunks)
            _name_phases(recorder, engine.sharding)
            _name_caches(recorder)
            recorder.memory.name(_named(engine))
            logs = found["exchange_log"] = {"build": tuple(recorder.exchange_log)}
            if work.loads:
                action, recorder.phase = "load a checkpoint", "load"
                recorder.clear()
                counts = load_without_data(config, engine, work)
                found["load"] = replace(counts, peak_bytes=recorder.memory.peak_bytes)
                logs["load"] = tuple(recorder.exchange_log)
            recorder.phase = "forward"
            for part in parts_of(work, config, engine):
                action = part.action
                begun, before_bytes = time.perf_counter(), recorder.memory.live_bytes
                recorder.clear()
                part.run()
                _add(found, part, recorder)
                logs[part.name] = tuple(recorder.exchange_log)
                found.setdefault("step_s", time.perf_counter() - begun)
                found["left_bytes"] = recorder.memory.live_bytes - before_bytes
            allocator = recorder.memory.allocator
            found |= {"reserved_bytes": allocator.reserved_peak_bytes, "allocator_retries": allocator.retries}
            found["unmeasured_bytes"] = unmeasured_bytes(len(recorder.communicators))
    except Exception as error:  # any: it would end the run
        found["problem"] = f"rank {rank} cannot {action}: {_sentence(error)}"
    return RankRehearsal(
        rank=rank,
        coordinates=layout.coordinates(rank),
        approximations=tuple(sorted(recorder.approximations)),
        cpu_s=time.process_time(),
        host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **found,
    )


def _built(recorder: Recorder, engine: Any) -> dict[str, Any]:
    values = [parameter.value for parameter in engine.parameters]
    if engine.sharding is not None:
        recorder.memory.classify("gradients", _gradient_buffers(engine.sharding))
        state = engine.state()
        for category, of_rows in (("optimizer", False), ("memory", True)):
            parts = {name: part for name, part in state.items() if name.startswith(_MEMORY_OF_ROWS) == of_rows}
            recorder.memory.classify(category, _pieces(parts))
        recorder.memory.classify("weights", _pieces(engine.weights_in_use()))
        if engine.config.distillation.teacher is not None:
            recorder.memory.classify("weights", _pieces(engine.part(TeacherWeights).weights_state()))
    recorder.memory.classify("weights", values)
    build_reserved_bytes = recorder.memory.allocator.reserved_peak_bytes
    recorder.memory.allocator.clear_peak()
    return {
        "parameters": sum(int(getattr(value, "ds_numel", value.numel())) for value in values),
        "build_peak_bytes": recorder.memory.peak_bytes,
        "build_reserved_bytes": build_reserved_bytes,
        "state_bytes": dict(recorder.memory.categories()),
    }


def _pieces(parts: Mapping[str, GlobalPart]) -> Iterator[Tensor]:
    for part in parts.values():
        yield from (piece.value for piece in part.pieces)


def _gradient_buffers(sharding: Any) -> Iterator[Tensor]:
    """The buffers in which megatron-core accumulates gradients. (DeepSpeed makes its own in each step.)"""
    for chunk in (*sharding.chunks, *sharding.generator_chunks):
        for name in ("buffers", "expert_parallel_buffers"):
            buffers = getattr(chunk, name, None)
            for buffer in buffers if isinstance(buffers, list) else ():
                yield buffer.grad_data


def _named(engine: Any) -> Iterator[tuple[str, Tensor]]:
    """Weights of each parameter, and what its gradient is accumulated in, by name."""
    for parameter in engine.parameters:
        for attribute in ("data", "main_grad", "ds_tensor"):
            tensor = getattr(parameter.value, attribute, None)
            if isinstance(tensor, Tensor):
                yield parameter.name, tensor


def _name_phases(recorder: Recorder, sharding: Any) -> None:
    def in_phase(name: str) -> Any:
        call = getattr(sharding, name)

        def named(*args: Any, **kwargs: Any) -> Any:
            with recorder.in_phase(name):
                return call(*args, **kwargs)

        return named

    for name in _STEP_PARTS if sharding is not None else ():
        setattr(sharding, name, in_phase(name))


def _name_caches(recorder: Recorder) -> None:
    """Has each layer's cache name its memory when it takes it."""

    def set_attribute(layer: LayerCache, name: str, value: Any) -> None:
        object.__setattr__(layer, name, value)
        recorder.memory.classify(CACHE, [one for one in tree_leaves(value) if isinstance(one, Tensor)])

    LayerCache.__setattr__ = set_attribute  # type: ignore[method-assign, assignment]


def _add(found: dict[str, Any], part: WorkPart, recorder: Recorder) -> None:
    """Adds what was counted in a part."""
    exchanges = tuple(
        Exchanges(**vars(kind), count=int(n), total_bytes=int(size), sent_bytes=sent)
        for kind, (n, size, sent) in sorted(recorder.exchanges.items())
    )
    counts = PartCounts(
        name=part.name,
        repeats=part.repeats,
        peak_bytes=recorder.memory.peak_bytes,
        flops=dict(recorder.flops),
        exchanges=exchanges,
        operators=recorder.operators,
        waits=dict(recorder.waits),
    )
    before = found.get("parts", ())
    if not before or (part.repeats and len(before) == 1):
        found |= {"flops": counts.flops, "exchanges": exchanges, "operators": counts.operators}
    if not before:
        found["first_waits"] = counts.waits
    found["parts"] = (*before, counts)
    found["waits"] = counts.waits
    found["without_kernel"] = dict(Counter(found.get("without_kernel", {})) | recorder.without_kernel)
    if counts.peak_bytes > found.get("peak_bytes", 0):
        found |= _at_peak(recorder)


def _sent_bytes(exchanges: Iterable[Exchanges]) -> dict[str, float]:
    sent: dict[str, float] = {}
    for one in exchanges:
        if one.is_sent:
            sent[one.group] = sent.get(one.group, 0.0) + one.sent_bytes
    return sent


def _at_peak(recorder: Recorder) -> dict[str, Any]:
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
    return {
        "peak_bytes": recorder.memory.peak_bytes,
        "peak_phase": recorder.memory.peak_phase,
        "at_peak_bytes": dict(by_category),
        "phase_peak_bytes": dict(recorder.memory.phase_peaks),
        "largest": largest,
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


def causes(counts: Mapping[str, int]) -> str:
    """The most frequent causes, each with how often if that is more than once."""
    ordered = largest_first(counts)
    shown = [f"{cause}{f' ({n:,} times)' if n > 1 else ''}" for cause, n in ordered[:_MOST_CAUSES]]
    rest = len(ordered) - len(shown)
    return ", ".join(shown) + (f" and {rest} more lines" if rest else "")


def largest_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Items by falling count."""
    return sorted(counts.items(), key=lambda item: -item[1])
