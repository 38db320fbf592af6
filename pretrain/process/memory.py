"""Memory that this process may use, and the error when it runs out."""

import os
from pathlib import Path
from types import FrameType, TracebackType

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_SIGNS = ("can't allocate memory", "out of memory", "bad_alloc", "Storage size calculation overflowed")
# (module, function) -> what it is at work on and what to do; the innermost that is in a traceback counts.
_PARTS = {
    ("pretrain.engine.make", "make_engine"): "building the model and its optimizer states: make it smaller, or share "
    "it over more ranks (parallel.tensor, parallel.pipeline, parallel.zero)",
    ("pretrain.engine.megatron.engine", "train_step"): "a training step (activations and gradients): lower "
    "batch.micro_sequences or model.sequence_length, or set parallel.recompute=full",
    ("pretrain.evaluate.heldout", "heldout_loss"): "scoring held-out text: lower batch.micro_sequences",
    ("pretrain.evaluate.evaluator", "evaluate"): "scoring: use more ranks (--nproc with parallel.tensor)",
    ("pretrain.evaluate.features", "write_features"): "computing hidden states: lower --batch, or use more ranks "
    "(--nproc with parallel.tensor)",
    ("pretrain.checkpoint.saver", "reserve"): "reserving the copy that checkpoints are written from: set "
    "checkpoint.in_flight to 1 or 0, or share the model over more ranks",
    ("pretrain.checkpoint.saver", "save"): "copying the state for a checkpoint: set checkpoint.in_flight=0",
    ("pretrain.checkpoint.store", "load"): "reading a checkpoint: share the model over more ranks",
    ("data_pipeline.loader", "batch"): "preparing a batch: lower batch.sequences or data.prefetch",
    ("pretrain.data.stream", "open_stream"): "opening the data: lower model.sequence_length or batch.sequences",
    ("data_pipeline.build.build", "build"): "building a dataset: lower workers or piece_bytes",
}


def host_bytes() -> int:
    """Bytes of memory that all ranks of this machine share: memory and swap, or less if a container has a limit."""
    sizes = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    kibibytes = sum(int(sizes[name].split()[0]) for name in ("MemTotal", "SwapTotal"))
    limits = [Path(path).read_text().strip() for path in _LIMITS if Path(path).exists()]
    return min([kibibytes * 1024, *(int(limit) for limit in limits if limit.isdigit())])


def ranks_here() -> int:
    """Ranks on this machine, as far as the launcher says."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def ran_out(error: BaseException) -> str | None:
    """A sentence that says at what memory ran out, if that is what `error` is."""
    is_memory_error = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if not is_memory_error and not (isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)):
        return None
    where = [_PARTS[key] for frame in _frames(error.__traceback__) if (key := _key(frame)) in _PARTS]
    return f"memory ran out while {where[-1]}" if where else "memory ran out: use a larger machine, or a smaller run"


def _frames(trace: TracebackType | None) -> list[FrameType]:
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


def _key(frame: FrameType) -> tuple[str, str]:
    return frame.f_globals.get("__name__", ""), frame.f_code.co_name
