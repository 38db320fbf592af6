"""What holds memory at the peak of a profiled step."""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import record_function

from pretrain.__main__ import main
from pretrain.config.profile import Profile
from pretrain.observe.profile import StepProfiler
from pretrain.observe.step_memory import peak_of
from pretrain.observe.step_trace import load_trace
from pretrain.run_dir.paths import RunDir

ROWS, WIDTH = 256, 1024


def profiler(directory: Path) -> StepProfiler:
    @contextmanager
    def no_ranges() -> Iterator[None]:
        yield

    return StepProfiler(Profile(steps=(2,), memory=True), directory, 0, no_ranges)


def two_layers(layers: list[nn.Linear], x: torch.Tensor) -> torch.Tensor:
    with record_function("step/forward"):
        for number, layer in enumerate(layers):
            with record_function(f"module/decoder.layers.{number}"):
                with record_function(f"module/decoder.layers.{number}.mlp"):
                    x = layer(x)
                x = x.sin()  # which keeps its input
    return x


def test_blocks_belong_to_the_modules_that_allocate_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layers, x = [nn.Linear(WIDTH, WIDTH) for _ in range(2)], torch.randn(ROWS, WIDTH)
    with profiler(tmp_path).step(2):
        loss = two_layers(layers, x).sum()
        with record_function("step/backward"):
            loss.backward()  # type: ignore[no-untyped-call]
    peak = peak_of(load_trace(RunDir(tmp_path).trace(2, 0)))
    assert peak is not None
    assert (peak.on_gpu, peak.before, peak.phase) == (False, None, "step/backward")
    held = dict(peak.by_place)
    assert held["step/backward"] >= 2 * 4 * WIDTH * WIDTH, "gradients"
    assert main(["profile", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "MiB at the peak of step 2 on rank 0, in step/backward" in printed
    total = next(line for line in printed.splitlines() if line.startswith("in all, besides"))
    assert float(total.split()[-1]) == pytest.approx(sum(held.values()) / 2**20, abs=0.02)


def test_a_step_that_runs_out_of_memory_leaves_a_trace(tmp_path: Path) -> None:
    layers, x = [nn.Linear(WIDTH, WIDTH) for _ in range(2)], torch.randn(ROWS, WIDTH)

    def step() -> None:
        with profiler(tmp_path).step(2):
            kept = two_layers(layers, x)
            torch.empty(2**50)
            del kept

    with pytest.raises(RuntimeError, match="memory"):
        step()
    peak = peak_of(load_trace(RunDir(tmp_path).trace(2, 0)))
    assert peak is not None
    assert peak.by_place["decoder.layers.*.mlp"] == 2 * 4 * ROWS * WIDTH


def test_a_block_that_was_there_before_is_none_of_the_step_s(tmp_path: Path) -> None:
    """The trace is made by hand: on a GPU, torch counts from the start of the process."""
    step = {"ph": "X", "cat": "user_annotation", "name": "step 2", "tid": 1, "ts": 0, "dur": 100}
    forward = {**step, "name": "step/forward", "ts": 10, "dur": 20}
    module = {**step, "name": "module/head", "ts": 12, "dur": 10}
    changes = ((5, 1, -100, 900), (13, 2, 500, 1400), (14, 3, 80, 1480), (25, 3, -80, 1400), (40, 4, 50, 1450))
    blocks = [
        {
            "ph": "i", "name": "[memory]", "tid": 1, "ts": at,
            "args": {"Device Type": 1, "Addr": address, "Bytes": change, "Total Allocated": total},
        }
        for at, address, change, total in changes
    ]  # fmt: skip
    path = RunDir(tmp_path).trace(2, 0)
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": [step, forward, module, *blocks]}, file)
    peak = peak_of(load_trace(path))
    assert peak is not None
    assert (peak.phase, peak.before, dict(peak.by_place)) == ("step/forward", 900, {"head": 580})


def test_a_trace_without_allocations_says_so(tmp_path: Path) -> None:
    with StepProfiler(Profile(steps=(2,)), tmp_path, 0, profiler(tmp_path)._named_ranges).step(2):
        torch.randn(3)
    assert peak_of(load_trace(RunDir(tmp_path).trace(2, 0))) is None
