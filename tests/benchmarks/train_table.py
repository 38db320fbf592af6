"""A training step against Hugging Face's on a CPU, for several sizes, lengths, precisions and threads: one table.

    python -m tests.benchmarks.train_table [--seconds 30] [--shapes small 30m 125m] [--lengths 256 512 1024]

Each row is `train_step.py`'s comparison, in a process of its own, for as many pairs of steps as fit in `--seconds`. The
last column is the share of the machine's matrix peak that our step reaches: operations of the model's own products over
those that torch makes a second on the largest of a few square matrices, in that precision (bf16 in fp32, where the step
has it so: `models/products.py`), with as many threads.
"""

import argparse
import itertools
import os
import statistics
import time
from multiprocessing import get_context

import torch

from pretrain.config.health import Health
from pretrain.engine import device as devices
from pretrain.engine import rendezvous
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.model_spec.parameters import num_parameters
from pretrain.models.products import by_fp32
from tests.benchmarks.train_step import SHAPES, Pair, config_of, device_name, measure, surroundings

_TOKENS = 1024  # of a step, in micro-batches of one row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seconds", type=float, default=30, help="of each row")
    add("--shapes", nargs="+", choices=SHAPES, default=["small", "30m", "125m"])
    add("--lengths", nargs="+", type=int, default=[256, 512, 1024])
    add("--dtypes", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    add("--threads", nargs="+", type=int, default=[1, 2])
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # of the rows' processes: they are about CPUs
    print(surroundings("train_table", device_name(torch.device("cpu"))))
    print("\n| Threads | Precision | Parameters | Tokens a row | Pairs | Ours, tokens/s | Ours / theirs | Quartiles "
          "| By processor time | Of the matrix peak |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    rows = itertools.product(options.threads, options.dtypes, options.shapes, options.lengths)
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for row in rows:
            print(pool.apply(_row, (*row, options.seconds)), flush=True)


def _row(threads: int, dtype: str, shape: str, length: int, seconds: float) -> str:
    torch.set_num_threads(threads)
    device = devices.install()
    rendezvous.init_process_group(Health())
    settings = argparse.Namespace(dtype=dtype, sequence=length, micro=1, rows=max(1, _TOKENS // length))
    config = config_of(shape, settings)
    pairs = measure(config, device, seconds=seconds)
    speed = config.batch.sequences * length / statistics.median(pair.ours_s for pair in pairs)
    by_clock, by_processor = _ratios(pairs)
    low, middle, high = statistics.quantiles(by_clock, n=4)
    share = speed * training_flops_per_token(config.model) / _peak(torch.float32 if dtype == "fp32" else torch.bfloat16)
    return (
        f"| {threads} | {dtype} | {num_parameters(config.model) / 1e6:.0f}M | {length:,} | {len(pairs)} | {speed:,.0f} "
        f"| **{middle:.2f}** | {low:.2f}-{high:.2f} | {statistics.median(by_processor):.2f} | {share:.0%} |"
    )


def _ratios(pairs: list[Pair]) -> tuple[list[float], list[float]]:
    return [p.theirs_s / p.ours_s for p in pairs], [p.theirs_cpu_s / p.ours_cpu_s for p in pairs]


def _peak(dtype: torch.dtype) -> float:
    """Operations a second, of numbers of this kind or, where those are made by fp32 here, of that."""
    best = 0.0
    for size in (512, 1024, 2048):
        a, b = (torch.randn(size, size, dtype=dtype) for _ in range(2))
        a, b = (x.float() if by_fp32(x) else x for x in (a, b))
        for _ in range(5):
            begin = time.perf_counter()
            a @ b
            best = max(best, 2 * size**3 / (time.perf_counter() - begin))
    return best


if __name__ == "__main__":
    main()
