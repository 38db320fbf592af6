"""Rehearses one rank: builds the engine as that rank and runs its work (`work.py`), on tensors without data. Runs in a
process of its own, in which torch is patched (`patches`)."""

import os
import re
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
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
from pretrain.rehearse.loading import load_without_data
from pretrain.rehearse.patches.attention import rehearsed_kernels
from pretrain.rehearse.patches.install import install_patches
from pretrain.rehearse.rank_rehearsal import CACHE, STATE, EqualTensors, Exchanges, PartCounts, RankRehearsal
from pretrain.rehearse.recorder import Recorder
from pretrain.rehearse.unmeasured import MOST_COMMUNICATORS, unmeasured_bytes
from pretrain.rehearse.work import RehearsedWork, WorkPart, parts_of

_MEMORY_OF_ROWS = "memory/"
"""begins the names of what layers have read of the rows before"""
_LARGEST = 8
"""most kinds of tensors that are named"""
_NUMBERS = re.compile(r"\.\d+(?=\.|$)")
_STEP_PARTS = ("reduce", "norm", "scale", "update")
_ROOT = Path(__file__).parents[2]


def rehearse_rank(
    config: RunConfig, layout: Layout, rank: int, hardware: Device, work: RehearsedWork | None = None
) -> RankRehearsal:
    """Rehearses `work` (default: training) of `rank` of `layout`. Call it once in a process."""
    work = work or RehearsedWork()
    config = config.model_copy(update={"health": config.health.model_copy(update={"replay_every": 0})})  # it needs data
    recorder = Recorder(hardware.memory_gib * 2**30 - unmeasured_bytes(MOST_COMMUNICATORS))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(layout.world), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    install_patches(config, hardware, recorder)
    device.set_max_connections(config.parallel)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world)
    found: dict[str, Any] = {}
    action = "be built"
    try:
        # DeepSpeed prints; the command's output is a report.
        with redirect_stdout(sys.stderr), FakeTensorMode(allow_non_fake_inputs=True), recorder:
            begun = time.perf_counter()
            kernels = partial(rehearsed_kernels, config, recorder)
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
        moved_bytes=dict(recorder.moved),
        exchanges=exchanges,
        operators=recorder.operators,
        waits=dict(recorder.waits),
    )
    before = found.get("parts", ())
    if not before or (part.repeats and len(before) == 1):
        found |= {"flops": counts.flops, "moved_bytes": counts.moved_bytes, "exchanges": exchanges}
        found["operators"] = counts.operators
    if not before:
        found["first_waits"] = counts.waits
    found["parts"] = (*before, counts)
    found["waits"] = counts.waits
    found["without_kernel"] = dict(Counter(found.get("without_kernel", {})) | recorder.without_kernel)
    if counts.peak_bytes > found.get("peak_bytes", 0):
        found |= _at_peak(recorder)


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
        if _ROOT / "pretrain" in path.parents and Path(__file__).parent not in path.parents
    ]
    line = f" ({own[-1][0].relative_to(_ROOT)}:{own[-1][1]})" if own else ""
    return f"{type(error).__name__}: {text[0] if text else 'no message'}{line}"
