"""Profiles of steps (`profile.steps`, `profile.ranks`): a trace of torch's profiler for Chrome and Perfetto, with
allocations and a snapshot of the GPU's memory, or ranges for Nsight.

    profiler = StepProfiler(config.profile, run_dir, rank, engine.named_ranges)
    with profiler.step(20): ...     # nothing happens in a step or on a rank that the config does not name
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pretrain.config.profile import Profile
from pretrain.errors import ConfigError
from pretrain.process import watchdog
from pretrain.run_dir.paths import RunDir

_MOST_ALLOCATIONS = 1_000_000


def check_profile(settings: Profile, ranks: int, steps: int, on_gpu: bool) -> None:
    """Raises ConfigError for a step that a run of so many `steps` never makes, a rank that it does not have, and what
    needs a GPU without one."""
    if settings.steps and max(settings.steps) > steps:
        raise ConfigError(f"profile.steps={max(settings.steps)} is beyond the run's {steps:,} steps")
    if settings.steps and max(settings.ranks) >= ranks:
        raise ConfigError(f"profile.ranks={max(settings.ranks)} is no rank of {ranks:,}: ranks are numbered from 0")
    if settings.nsight and not on_gpu:
        raise ConfigError("profile.nsight=true needs CUDA, which is not available here: leave it out")


class StepProfiler:
    """Profiles of one rank. `named_ranges` has the engine mark phases and modules inside it."""

    def __init__(
        self, settings: Profile, run_dir: Path, rank: int, named_ranges: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._settings, self._files, self._rank = settings, RunDir(run_dir), rank
        self._named_ranges = named_ranges
        self._steps = frozenset(settings.steps) if rank in settings.ranks else frozenset()

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Profiles what is inside, if `step` is one of `profile.steps`, and writes the files."""
        if step not in self._steps:
            yield
            return
        with self._nsight() if self._settings.nsight else self._trace(step), self._named_ranges():
            with record_function(f"step {step}"):
                yield
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # kernels of the update belong to the step

    @contextmanager
    def _trace(self, step: int) -> Iterator[None]:
        on_gpu, memory = torch.cuda.is_available(), self._settings.memory
        if memory and on_gpu:
            torch.cuda.memory._record_memory_history(max_entries=_MOST_ALLOCATIONS)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        trace = profile(activities=activities, record_shapes=True, profile_memory=memory)
        try:
            with trace:
                yield
        finally:  # also of a step that runs out of memory
            with watchdog.allow_slow_io():
                path = self._files.trace(step, self._rank)
                path.parent.mkdir(parents=True, exist_ok=True)
                trace.export_chrome_trace(str(path))
                if memory and on_gpu:
                    torch.cuda.memory._dump_snapshot(str(self._files.memory_snapshot(step, self._rank)))
                    torch.cuda.memory._record_memory_history(enabled=None)

    @contextmanager
    def _nsight(self) -> Iterator[None]:
        torch.cuda.cudart().cudaProfilerStart()
        with torch.autograd.profiler.emit_nvtx():
            yield
        torch.cuda.cudart().cudaProfilerStop()
