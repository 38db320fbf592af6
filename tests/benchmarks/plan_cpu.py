"""Steps of ranks on this machine, and what `pretrain plan` says of them from a description measured just before.

    python -m tests.benchmarks.plan_cpu                      # calibrates first: two to four minutes, nothing beside it
    python -m tests.benchmarks.plan_cpu --hardware here.yaml --only 2

Models, layouts and numbers of ranks are none of those that calibration times. Each step is the engine's, on rows made
up here; medians are shown.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pretrain.config.load import load, validate
from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import plan_layout
from pretrain.layout.names import short_name
from pretrain.plan.device import Device, find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import constants_on
from pretrain.plan.estimate.seconds import step_seconds
from tests.helpers.ranks import run_ranks

# layers, hidden, heads, length, words, sequences, of a micro-batch
MODELS = {
    "narrow": (4, 128, 4, 256, 1_024, 16, 4),
    "middle": (6, 256, 8, 256, 4_096, 8, 2),
    "wide": (4, 512, 8, 128, 8_192, 8, 2),
}
LAYOUTS = {1: ({},), 2: ({}, {"tensor": 2}, {"pipeline": 2}), 4: ({}, {"tensor": 2, "pipeline": 2}, {"tensor": 4})}
_WARMING, _STEPS = 2, 7


def config_of(model: str, parallel: dict[str, int]) -> RunConfig:
    """One of MODELS on one of LAYOUTS."""
    layers, hidden, heads, length, words, sequences, micro = MODELS[model]
    tree = load(RunConfig, "debug/gpt").model_dump(mode="json")
    tree["batch"] |= {"sequences": sequences, "micro_sequences": micro}
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "sequence_length": length, "vocabulary": words}
    tree["model"] |= sizes | {"attention": {"pattern": ["dense"]}}
    tree["parallel"] |= {"tensor": 1, "pipeline": 1} | parallel
    return validate(RunConfig, tree, model)


def seconds_of(config: RunConfig, threads: int) -> list[float]:
    """On a rank: of each step."""
    import torch

    from pretrain.data.synthetic import SyntheticStream
    from pretrain.engine.make import make_engine

    torch.set_num_threads(threads)
    layout = plan_layout(config, int(os.environ["WORLD_SIZE"]))
    engine = make_engine(config, layout)
    engine.initialise()
    _, _, data_rank, _ = layout.coordinates(int(os.environ["RANK"]))
    rows = SyntheticStream(config).batch(0, config.batch.sequences, data_rank, layout.data)
    times = []
    for step in range(_WARMING + _STEPS):
        torch.distributed.barrier()
        started_s = time.perf_counter()
        engine.train_step(rows, 1e-4, step)
        times.append(time.perf_counter() - started_s)
    return times[_WARMING:]


def predicted(config: RunConfig, ranks: int, device: Device) -> float:
    choice = LayoutChoice(plan_layout(config, ranks), config.batch.micro_sequences, config.parallel.recompute)
    work = WorkloadBuilder(config, device, ranks).build([choice])
    return float(step_seconds(work, constants_on(device, ranks)).total[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", type=Path, help="a description; without it, one is measured first")
    parser.add_argument("--only", type=int, choices=LAYOUTS, help="this number of ranks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = options.hardware or Path(folder) / "here.yaml"
        if options.hardware is None:
            started_s = time.monotonic()
            subprocess.run([sys.executable, "-m", "pretrain", "plan", "calibrate", "--out", str(file)], check=True)
            print(f"calibrated in {time.monotonic() - started_s:.0f} s")
        device = find_device(str(file))
    cores, omp_threads = len(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS")
    off = []
    for ranks, layouts in LAYOUTS.items():
        for model in MODELS if options.only in (None, ranks) else ():
            for parallel in layouts:
                config = config_of(model, parallel)
                times = run_ranks(ranks, seconds_of, config, int(omp_threads or max(1, cores // ranks)), timeout_s=300)
                measured = statistics.median(map(max, zip(*times, strict=True)))
                said = predicted(config, ranks, device)
                off.append(said / measured - 1)
                name = short_name(plan_layout(config, ranks))
                times_s = f"{measured * 1e3:8.1f} ms, said {said * 1e3:8.1f}"
                print(f"{ranks} ranks  {name:<10} {model:<8} {times_s}: {off[-1]:+.0%}", flush=True)
    within = sum(abs(one) <= 0.15 for one in off)
    print(f"{len(off)} steps: within 15% {within}, median {statistics.median(map(abs, off)):.0%}")


if __name__ == "__main__":
    main()
