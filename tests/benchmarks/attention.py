"""What attention patterns cost, against torch's dense causal attention: processor seconds of forward and backward, and
the most memory that they hold.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.attention                    # one thread, 2,048 to 8,192 positions
    OMP_NUM_THREADS=1 python -m tests.benchmarks.attention --packed           # rows of documents, against plain rows
    OMP_NUM_THREADS=1 python -m tests.benchmarks.attention --memory 32768     # each pattern in a process of its own
    python -m tests.benchmarks.attention --device cuda                        # a GPU's own seconds

Dense and sparse take turns, and the smallest of the rounds counts. A row of 8 heads of width 64.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as kernel

from pretrain.attention.packed import PackedSegments, attend_by_segment
from pretrain.config.attention import Banded, Dense
from pretrain.config.patterns.bands import Dilated, LocalGlobal
from pretrain.config.patterns.base import PatternSettings
from pretrain.config.patterns.blocks import BigBird, Blocks
from pretrain.config.patterns.factorized import Fixed, Strided
from tests.helpers.attention import attend_by_pattern

HEADS, WIDTH = 8, 64
PATTERNS: dict[str, PatternSettings] = {
    "dense": Dense(),
    "banded 256": Banded(window=256),
    "strided 128": Strided(stride=128),
    "fixed 128, summary 8": Fixed(stride=128, summary=8),
    "dilated 128 x 4": Dilated(window=128, dilation=4),
    "window 256 + 64 global": LocalGlobal(window=256, tokens=64),
    "blocks 256": Blocks(block=256),
    "BigBird 64": BigBird(),
}
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend(settings: PatternSettings) -> Attend:
    return partial(attend_by_pattern, settings)


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return kernel(q, k, v, is_causal=True)


def seconds(run: Attend, length: int, device: str) -> float:
    """Seconds of one forward and backward pass."""
    inputs = [torch.randn(length, 1, HEADS, WIDTH, device=device).permute(1, 2, 0, 3).requires_grad_() for _ in "qkv"]
    weight = torch.randn(1, HEADS, length, WIDTH, device=device)
    if device == "cuda":
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.autograd.grad((run(*inputs) * weight).sum(), inputs)
        torch.cuda.synchronize()
        return time.perf_counter() - begin
    begin = time.process_time()
    torch.autograd.grad((run(*inputs) * weight).sum(), inputs)
    return time.process_time() - begin


def compare(one: Attend, other: Attend, length: int, device: str, rounds: int) -> tuple[float, float]:
    """The least of each, taking turns."""
    seconds(other, length, device)  # which makes its parts
    found = [(seconds(one, length, device), seconds(other, length, device)) for _ in range(rounds)]
    return min(pair[0] for pair in found), min(pair[1] for pair in found)


def documents(length: int) -> PackedSegments:
    """Documents of a packed row: each half as long as the one before, down to 128 positions, and again."""
    bounds, size = [0], length // 2
    while bounds[-1] < length:
        bounds.append(min(bounds[-1] + size, length))
        size = size // 2 if size > 128 else length // 4
    return [list(pairwise(bounds))]


def peak_bytes(name: str, length: int) -> int:
    """Beyond what a process has that has imported everything."""
    run = attend(PATTERNS[name])
    seconds(run, 512, "cpu")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds(run, length, "cpu")
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--memory", type=int, metavar="LENGTH")
    parser.add_argument("--alone", action="store_true", help="of --memory: in this process")
    options = parser.parse_args()
    if options.memory is not None:
        for name in options.patterns:
            if options.alone:
                print(f"{name:24} {options.memory:6} {peak_bytes(name, options.memory) / 2**20:8.0f} MiB", flush=True)
            else:
                again = ["--memory", str(options.memory), "--alone", "--patterns", name]
                subprocess.run([sys.executable, "-m", "tests.benchmarks.attention", *again], check=True)
        return
    for length in options.lengths:
        for name in options.patterns:
            run = attend(PATTERNS[name])
            one: Attend = run if options.packed else dense
            other: Attend = partial(attend_by_segment, run, segments=documents(length)) if options.packed else run
            first, second = compare(one, other, length, options.device, options.rounds)
            names = ("plain", "packed") if options.packed else ("dense", "sparse")
            print(f"{name:24} {length:6} {names[0]} {first:7.3f} s {names[1]} {second:7.3f} s  {first / second:5.2f}",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
