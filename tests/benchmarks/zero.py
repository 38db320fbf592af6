"""Each way to share a training step's memory: what a step takes, what a rank holds, how large a model may be.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.zero              # 4 data ranks on the CPU, about five minutes
    python -m tests.benchmarks.zero --device cuda                  # one GPU, bf16: 1.3b and 6.7b, offloaded or not

On the CPU all shardings are alive in the same processes and take turns (A B C ... A B C ...), at equal work. On a GPU,
whose memory they would fill, one comes after the other.
"""

import argparse
import gc
import os
import platform
import statistics
import time
from datetime import date
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from pretrain.config.health import Health
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.engine import device as devices
from pretrain.engine import rendezvous
from pretrain.engine.make import make_engine
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.parameters import num_parameters
from pretrain.plan.memory import state_bytes
from tests.benchmarks.train_step import CONFIGS
from tests.helpers.memory import held, tensor_bytes
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import ROWS, Rows, build_engine, rows, tiny_config

RANKS = 4
BUDGET = 256 << 20
PRECISIONS = ("fp32", "bf16")
DEEPSPEED = {stage: {"zero": stage, "zero_engine": "deepspeed"} for stage in (1, 2, 3)}
SHARDINGS: dict[str, dict[str, Any]] = {
    "zero 0": {"zero": 0},
    "megatron's zero 1": {"zero": 1},
    **{f"DeepSpeed's zero {stage}": parallel for stage, parallel in DEEPSPEED.items()},
}
OFFLOADED: dict[str, dict[str, Any]] = {
    "DeepSpeed's zero 2, optimizer offloaded": {**DEEPSPEED[2], "offload_optimizer": True},
    "DeepSpeed's zero 3, all offloaded": {**DEEPSPEED[3], "offload_optimizer": True, "offload_parameters": True},
}


def _config(parallel: dict[str, Any], precision: str, layers: int) -> RunConfig:
    model = {"hidden": 512, "heads": 8, "layers": layers, "vocabulary": 8192}
    return tiny_config(model=model, parallel=parallel, precision=precision)


def _time_steps(precision: str, layers: int, rounds: int) -> list[list[float]]:
    """Seconds of each step of each sharding."""
    engines = [build_engine(_config(parallel, precision, layers)) for parallel in SHARDINGS.values()]
    seconds: list[list[float]] = [[] for _ in engines]
    for step in range(-1, rounds):
        for engine, taken in zip(engines, seconds, strict=True):
            batch, start = rows(engine, step + 1), time.perf_counter()
            engine.train_step(batch, 1e-4, step + 1)
            if step >= 0:  # the first warms up
                taken.append(time.perf_counter() - start)
    return seconds


def _largest(parallel: dict[str, Any], precision: str) -> tuple[int, int, float]:
    """(layers, parameters, bytes held) of the deepest model of width 512 that one rank holds within the budget."""
    devices.install()
    layout = plan_layout(_config(parallel, precision, 1), RANKS)
    one, two = (num_parameters(_config(parallel, precision, layers).model) for layers in (1, 2))
    fits = lambda layers: state_bytes(one + (layers - 1) * (two - one), layout, precision).total <= BUDGET  # noqa: E731
    layers = next(layers for layers in range(1, 1000) if not fits(layers + 1))
    while True:  # theory says where to begin, measurement decides
        gc.collect()
        before = tensor_bytes()
        engine = build_engine(_config(parallel, precision, layers))
        total = held(engine, before).total
        parameters = num_parameters(engine.config.model)
        del engine
        meet_again()
        if total <= BUDGET:
            return layers, parameters, total
        layers -= 1


def _on_cpu(options: argparse.Namespace) -> None:
    count = num_parameters(_config({}, "fp32", options.layers).model)
    print(
        f"\n{count / 1e6:.1f}M parameters, {ROWS} rows of 32 tokens, {RANKS} data ranks, {options.rounds} steps each\n"
    )
    print("| sharding | fp32: s a step | x | bf16: s a step | x |\n|---|---|---|---|---|")
    columns = []
    for precision in PRECISIONS:
        of_ranks = run_ranks(RANKS, _time_steps, precision, options.layers, options.rounds, timeout_s=1800)
        slowest = [[max(times) for times in zip(*steps, strict=True)] for steps in zip(*of_ranks, strict=True)]
        medians = [statistics.median(times) for times in slowest]
        columns.append([(median, median / medians[1]) for median in medians])
    for name, *cells in zip(SHARDINGS, *columns, strict=True):
        print(f"| {name} | " + " | ".join(f"{seconds:.2f} | {ratio:.2f}" for seconds, ratio in cells) + " |")
    print(f"\nDeepest model of width 512 in {BUDGET >> 20} MB of training state on each of {RANKS} data ranks\n")
    print("| sharding | fp32: layers | parameters | MB held | bf16: layers | parameters | MB held |")
    print("|---|---|---|---|---|---|---|")
    for name, parallel in SHARDINGS.items():
        cells = []
        for precision in PRECISIONS:
            layers, parameters, total = run_ranks(RANKS, _largest, parallel, precision, timeout_s=600)[0]
            cells.append(f"{layers} | {parameters / 1e6:.0f}M | {total / (1 << 20):.0f}")
        print(f"| {name} | " + " | ".join(cells) + " |")


def _on_gpu(options: argparse.Namespace) -> None:
    device = devices.install()
    rendezvous.init_process_group(Health())
    print("| size | sharding | tokens/s | GiB of GPU memory at most |\n|---|---|---|---|")
    for size in options.sizes.split(","):
        for name, parallel in {**SHARDINGS, **OFFLOADED}.items():
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            try:
                speed = _tokens_per_second(size, parallel, device, options.rounds)
            except torch.cuda.OutOfMemoryError:
                print(f"| {size} | {name} | does not fit | |")
                continue
            print(
                f"| {size} | {name} | {speed:.0f} | {torch.cuda.max_memory_allocated() / (1 << 30):.1f} |", flush=True
            )


def _tokens_per_second(size: str, parallel: dict[str, Any], device: torch.device, rounds: int) -> float:
    settings = {"batch.ramp": "null", "batch.sequences": 4, "batch.micro_sequences": 1, "precision": "bf16"}
    settings |= {f"parallel.{key}": value for key, value in {**parallel, "recompute": "full"}.items()}
    config = load(RunConfig, CONFIGS / f"{size}.yaml", [f"{key}={value}" for key, value in settings.items()])
    engine = make_engine(config, plan_layout(config, 1))
    engine.initialise()
    length = config.model.sequence_length
    ids = np.random.default_rng(0).integers(0, config.model.vocabulary or 0, (4, length + 1))
    batch = Rows(ids[:, :-1], ids[:, 1:], np.ones((4, length), np.float32))
    engine.train_step(batch, 1e-4, 0)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for step in range(rounds):
        engine.train_step(batch, 1e-4, step + 1)
    torch.cuda.synchronize()
    return rounds * batch.tokens.size / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--layers", type=int, default=8, help="of the model whose steps are timed on the CPU")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each")
    parser.add_argument("--sizes", default="1.3b,6.7b", help="of configs/gpt3, on a GPU")
    options = parser.parse_args()
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "megatron-core", "deepspeed"))
    print(f"{date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, {versions}")
    if options.device == "cuda":
        _on_gpu(options)
    else:
        _on_cpu(options)


if __name__ == "__main__":
    main()
