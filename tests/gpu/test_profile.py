"""One GPU: a profiled step computes what another does, and its trace, its memory and its ranges are there."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.config.profile import Profile
from pretrain.observe.profile import StepProfiler
from pretrain.observe.step_memory import peak_of
from pretrain.observe.step_trace import ATTENTION, OPTIMIZER, PRODUCTS, load_trace, split_of
from pretrain.run_dir.paths import RunDir
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, rows, tiny_config

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]
PROFILED = 3


def _curves(directory: Path, profiles: list[dict[str, Any]]) -> list[list[float]]:
    curves = []
    for number, profile in enumerate(profiles):
        if number:
            meet_again()
        deterministic = {"dir": "unused", "seed": 7, "deterministic": True}
        engine = build_engine(tiny_config(precision="bf16", run=deterministic, track={"norms_every_steps": number}))
        profiler = StepProfiler(Profile(**profile), directory, 0, engine.named_ranges)
        curve = []
        for step in range(1, 5):
            with profiler.step(step):
                result = engine.train_step(rows(engine, step), 1e-3, step)
            curve += [result.loss_sum, result.grad_norm]
        curves.append(curve)
    return curves


def test_a_profiled_step_computes_what_another_does(tmp_path: Path) -> None:
    traced = {"steps": (PROFILED,), "memory": True}
    (curves,) = run_ranks(1, _curves, tmp_path, [{}, traced, {"steps": (PROFILED,), "nsight": True}], timeout_s=300)
    assert curves[1] == curves[0]
    assert curves[2] == curves[0]
    trace = load_trace(RunDir(tmp_path).trace(PROFILED, 0))
    peak, split = peak_of(trace), split_of(trace)
    assert peak is not None
    assert peak.on_gpu
    assert peak.before is not None
    assert peak.before > 0, "weights"
    assert any(place.endswith(".mlp") for place in peak.by_place)
    assert split.on_gpu
    assert all(split.seconds[name] > 0 for name in (PRODUCTS, ATTENTION, OPTIMIZER)), split.seconds
    assert RunDir(tmp_path).memory_snapshot(PROFILED, 0).stat().st_size > 0
