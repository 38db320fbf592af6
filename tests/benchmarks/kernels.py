"""One optimizer step with compiled kernels beside one with plain ones, of models that leave them different work.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.kernels                # CPU, fp32: 8 layers of 512
    python -m tests.benchmarks.kernels --device cuda --size 125m        # bf16

Both engines are in one process, have the same weights, and take turns on the same rows; each pair gives one ratio. Each
first makes two steps, in which kernels are compiled, and whose losses have to agree.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path

import torch

from data_pipeline.batch import Rows
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.base import Engine
from pretrain.engine.make import make_engine
from pretrain.layout.layout import plan_layout
from tests.benchmarks.train_step import started, timed

_DROPOUT = ["model.dropout=0.1", "model.attention_dropout=0.1"]
MODELS = {
    "GPT": ("gpt3/125m", []),
    "GPT, dropout": ("gpt3/125m", _DROPOUT),
    "Llama": ("llama/125m", []),
    "BERT": ("bert/base", ["batch.short=null"]),
}
SIZES = {
    "tiny": "model.layers=2 model.hidden=32 model.heads=2 model.head_dim=16 model.ffn=64 model.vocabulary=256",
    "30m": "model.layers=8 model.hidden=512 model.heads=8 model.head_dim=64 model.vocabulary=8192",
    "125m": "",
}
_RATE, _CONFIGS = 1e-4, Path(__file__).parents[2] / "configs"


def main() -> None:
    options = _options()
    device = started("kernels", options.device)
    print(f"\n{options.dtype}, {options.rows} x {options.length} tokens a step, {options.size}\n")
    print("| Model | ms, plain | ms, compiled | plain / compiled | Quartiles | By processor time |")
    print("|---|---|---|---|---|---|")
    for name in options.models:
        print(_line(name, options, device), flush=True)


def _line(name: str, options: argparse.Namespace, device: torch.device) -> str:
    configs = [_config(name, kernels, options) for kernels in ("plain", "compiled")]
    engines = [make_engine(config, plan_layout(config, 1)) for config in configs]
    stream = SyntheticStream(configs[0])
    for engine in engines:
        engine.initialise()
    for step in range(2):
        rows = stream.batch(step * options.rows, options.rows, 0, 1)
        plain, compiled = (_loss(engine, rows, step) for engine in engines)
        assert abs(plain - compiled) < (1e-3 if options.dtype == "fp32" else 5e-2), f"{name}: {plain} and {compiled}"
    pairs = []
    for step in range(2, 2 + options.steps):
        rows = stream.batch(step * options.rows, options.rows, 0, 1)
        pairs.append([timed(partial(_loss, engine, rows, step), device) for engine in engines])
    medians = (1e3 * statistics.median(pair[which][0] for pair in pairs) for which in (0, 1))
    by_clock, by_processor = ([pair[0][kind] / pair[1][kind] for pair in pairs] for kind in (0, 1))
    low, middle, high = statistics.quantiles(by_clock, n=4) if len(pairs) > 1 else by_clock * 3
    times = " | ".join(f"{ms:,.0f}" for ms in medians)
    return f"| {name} | {times} | **{middle:.2f}** | {low:.2f}-{high:.2f} | {statistics.median(by_processor):.2f} |"


def _loss(engine: Engine, rows: Rows, step: int) -> float:
    result = engine.train_step(rows, _RATE, step)
    return result.loss_sum / result.token_count


def _config(name: str, kernels: str, options: argparse.Namespace) -> RunConfig:
    file, changes = MODELS[name]
    fixed = {
        "batch.ramp": "null",
        "batch.sequences": options.rows,
        "batch.micro_sequences": options.micro,
        "model.sequence_length": options.length,
        "model.attention.pattern": "[dense]",
        "precision": options.dtype,
        "run.kernels": kernels,
    }
    settings = [*SIZES[options.size].split(), *changes, *(f"{key}={value}" for key, value in fixed.items())]
    return load(RunConfig, _CONFIGS / f"{file}.yaml", settings)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--models", nargs="+", choices=MODELS, default=list(MODELS))
    add("--size", choices=SIZES, default="30m")
    add("--dtype", choices=("fp32", "bf16"), help="default: fp32 on a CPU, bf16 on a GPU")
    add("--length", type=int, default=512, help="tokens per row")
    add("--micro", type=int, help="rows per forward pass; default: 1 on a CPU, 8 on a GPU")
    add("--rows", type=int, help="rows per step; default: two micro-batches")
    add("--steps", type=int, default=20, help="pairs measured")
    options = parser.parse_args()
    options.dtype = options.dtype or ("fp32" if options.device == "cpu" else "bf16")
    options.micro = options.micro or (1 if options.device == "cpu" else 8)
    options.rows = options.rows or 2 * options.micro
    return options


if __name__ == "__main__":
    main()
