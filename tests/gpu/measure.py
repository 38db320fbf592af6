"""One case of `make gpu-report`, as a JSON object.

    python -m tests.gpu.measure measured "gpt3/125m micro=16 model.attention.pattern=[dense]"
    python -m tests.gpu.measure expected "gpt3/125m micro=16 model.attention.pattern=[dense]" h100

`measured`: seconds and memory of steps on this process's device. `expected`: what the planner says of such a device,
and what a rehearsal counts, which needs no device.
"""

import json
import statistics
import sys
import time
from typing import Any

import torch

from pretrain.config.health import Health
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine import device as devices
from pretrain.engine import rendezvous
from pretrain.engine.make import make_engine
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.plan.device import find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import constants_on
from pretrain.plan.estimate.seconds import step_seconds
from pretrain.plan.hardware import hardware_name, peak_flops
from pretrain.plan.planner import with_vocabulary
from pretrain.rehearse.run import rehearse
from tests.benchmarks.train_step import device_name
from tests.gpu.cases import find_case

_WARM_UP, _LEAST, _SECONDS = 3, 5, 20.0
"""steps before any is timed, least number of steps that are timed, and seconds in which more may begin"""


def main() -> None:
    kind, name, *hardware = sys.argv[1:]
    config = with_vocabulary(find_case(name).load())
    print(json.dumps(expected(config, *hardware) if kind == "expected" else measured(config)))


def measured(config: RunConfig, seconds: float = _SECONDS) -> dict[str, Any]:
    """Median seconds of a step, tokens per second, MFU, and the most memory that was allocated and reserved in steps;
    None where the device does not tell."""
    device = devices.install()
    rendezvous.init_process_group(Health())
    engine = make_engine(config, plan_layout(config, 1))
    engine.initialise()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()  # what the build took is not a step's
    stream, rows = SyntheticStream(config), config.batch.sequences
    taken, end = list[float](), time.perf_counter() + seconds
    while len(taken) < _WARM_UP + _LEAST or time.perf_counter() < end:
        batch, start = stream.batch(len(taken) * rows, rows, 0, 1), time.perf_counter()
        engine.train_step(batch, config.optimizer.learning_rate, len(taken) + 1)
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    step_s, name = statistics.median(taken[_WARM_UP:]), device_name(device)
    tokens_per_s = rows * config.model.sequence_length / step_s
    on_gpu = device.type == "cuda"
    peak = peak_flops(name, config.precision) if on_gpu else None
    return {
        "device": name,
        "hardware": hardware_name(name),
        "steps": len(taken) - _WARM_UP,
        "step_s": step_s,
        "tokens_per_s": tokens_per_s,
        "mfu": peak and tokens_per_s * training_flops_per_token(config.model) / peak,
        "allocated_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
    }


def expected(config: RunConfig, hardware: str) -> dict[str, Any]:
    """Seconds and memory of a step as planned, and memory as rehearsed."""
    device, layout = find_device(hardware), plan_layout(config, 1)
    choice = LayoutChoice(layout, config.batch.micro_sequences, config.parallel.recompute)
    work = WorkloadBuilder(config, device, 1).build([choice])
    rehearsal = rehearse(
        config, 1, ranks=[0], device=device, per_node=1, micro_batches=config.batch.sequences // choice.micro_sequences
    )
    (rank,), (planned,) = rehearsal.ranks, rehearsal.planned
    return {
        "planned_step_s": float(step_seconds(work, constants_on(device, 1)).total[0]),
        "planned_bytes": planned.peak_bytes,
        "planned_reserved_bytes": planned.peak_bytes + planned.overhead_bytes,
        "rehearsed_bytes": rank.peak_bytes or None,
        "rehearsed_reserved_bytes": rank.reserved_bytes or None,
        "problem": rank.problem,
    }


if __name__ == "__main__":
    main()
