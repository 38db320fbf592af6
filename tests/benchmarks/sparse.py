"""What attention patterns cost and give in training: of each the processor seconds and memory of a step at 2,048 to
32,768 positions, and held-out loss of real text, of bytes, at equal processor time.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.sparse TEXT --out sparse.png     # made for 20 minutes on one core
    OMP_NUM_THREADS=1 python -m tests.benchmarks.sparse TEXT --only steps
    OMP_NUM_THREADS=1 python -m tests.benchmarks.sparse TEXT --tiny               # to see that it runs

Steps are of a GPT of two layers, one row each; the lesser of two counts, and the memory is what the process has at its
peak beyond what it has before its first model. Losses are of four layers at 4,096 positions: decoders say the next
byte, encoders hidden bytes (15%). Seconds of evaluation do not count. Each form is measured in a process of its own,
one after the other.
"""

import argparse
import json
import math
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import megatron.core
import numpy as np
import torch
from matplotlib.figure import Figure
from torch.distributed import HashStore

from data_pipeline.batch import Rows
from pretrain.config.load import validate
from pretrain.config.run_config import RunConfig
from pretrain.engine import device, rendezvous
from pretrain.engine.base import Engine
from pretrain.engine.make import make_engine
from pretrain.layout.layout import plan_layout

DECODERS: dict[str, dict[str, Any]] = {
    "dense": {"name": "dense"},
    "banded 256": {"name": "banded", "window": 256},
    "strided 64": {"name": "strided", "stride": 64},
    "fixed 64, summary 8": {"name": "fixed", "stride": 64, "summary": 8},
    "window 256 + 64 global": {"name": "local_global", "window": 256, "tokens": 64},
    "BigBird 64": {"name": "bigbird"},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "dense encoder": {"name": "dense"},
    "BigBird 64 encoder": {"name": "bigbird", "last": 1},
}
LEARNERS = ("dense", "banded 256", "strided 64", *ENCODERS)
LENGTHS, STEPS = (2048, 4096, 8192, 16384, 32768), 2
LENGTH, SECONDS, SCORED, HELD_OUT = 4096, 150.0, 8, 4
"""of losses: positions, processor seconds of training, times that held-out rows are scored, and how many they are"""
MASK, VOCABULARY, HIDDEN_SHARE = 256, 257, 0.15
_RATE, _WARMING = 2e-3, 10
_PATIENCE_S = 600
_FIRST = 256  # positions of the first model, which brings what every process holds


def config_of(form: str, length: int, layers: int) -> RunConfig:
    encoder = form in ENCODERS
    tree = {
        "run": {"name": "sparse", "dir": "sparse"},
        "train": {"steps": 1},
        "batch": {"sequences": 1, "micro_sequences": 1},
        "model": {
            "family": "roberta" if encoder else "gpt", "layers": layers, "hidden": 128, "heads": 4,
            "sequence_length": length, "vocabulary": VOCABULARY, "init": {"std": 0.05},
            "attention": {"pattern": [(ENCODERS if encoder else DECODERS)[form]]},
        },
        "objective": {"name": "masked" if encoder else "causal"},
        "optimizer": {"learning_rate": _RATE},
    }  # fmt: skip
    return validate(RunConfig, tree, "sparse")


def engine_of(config: RunConfig) -> Engine:
    engine = make_engine(config, plan_layout(config, 1))
    engine.initialise()
    return engine


def steps(form: str, text: Path, lengths: list[int]) -> Iterator[dict[str, float]]:
    """Times a step at each length, in ascending order, so that the peak memory of the process is that of the length."""
    device.install()
    text_bytes, store = _bytes(text), HashStore()
    before = 0
    for number, length in enumerate([_FIRST, *lengths]):
        config = config_of(form, length, 2)
        with rendezvous.temporary_process_group(store, str(number), 0, 1, _PATIENCE_S):
            engine, times = engine_of(config), []
            for step in range(STEPS):
                rows = _rows(text_bytes, form, length, 1, np.random.default_rng(step))
                times.append(_seconds(lambda engine=engine, rows=rows, step=step: engine.train_step(rows, _RATE, step)))
            del engine
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        before = before or peak
        if number:
            yield {"length": length, "seconds": min(times), "bytes": peak - before}


def losses(form: str, text: Path, length: int, seconds: float) -> Iterator[dict[str, float]]:
    """Held-out loss, bits a byte, over processor seconds of training."""
    device.install()
    text_bytes = _bytes(text)
    border = len(text_bytes) * 9 // 10
    with rendezvous.temporary_process_group(HashStore(), "losses", 0, 1, _PATIENCE_S):
        engine = engine_of(config_of(form, length, 4))
        held_out = _rows(text_bytes[border:], form, length, HELD_OUT, np.random.default_rng(1))
        random, spent, step = np.random.default_rng(0), 0.0, 0
        for number in range(SCORED + 1):
            while spent < seconds * number / SCORED:
                rows, rate = _rows(text_bytes[:border], form, length, 1, random), _RATE * min(1, (step + 1) / _WARMING)
                spent += _seconds(lambda rows=rows, rate=rate, step=step: engine.train_step(rows, rate, step))
                step += 1
            found = engine.score(held_out).log_probability
            bits = -float((found * held_out.loss_mask).sum() / held_out.loss_mask.sum()) / math.log(2)
            yield {"seconds": spent, "steps": step, "bits": bits}


def _bytes(text: Path) -> np.ndarray[Any, Any]:
    return np.frombuffer(text.read_bytes(), np.uint8)


def _rows(text: np.ndarray[Any, Any], form: str, length: int, count: int, random: np.random.Generator) -> Rows:
    """Windows of the text from anywhere in it."""
    if len(text) <= length:
        sys.exit(f"sparse: the text has too few bytes for windows of {length}: give a longer one")
    begins = random.integers(0, len(text) - length, count)
    windows = text[begins[:, None] + np.arange(length + 1)].astype(np.int64)
    if form not in ENCODERS:
        return Rows.of(windows[:, :-1], windows[:, 1:])
    tokens, hidden = windows[:, :-1], random.random((count, length)) < HIDDEN_SHARE
    shown = np.ones_like(hidden)
    return Rows(np.where(hidden, MASK, tokens), tokens, hidden.astype(np.float32), attention_mask=shown)


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def _apart(options: argparse.Namespace, part: str, form: str, *more: str) -> list[dict[str, float]]:
    """What a process of its own finds."""
    command = [sys.executable, "-m", "tests.benchmarks.sparse", str(options.text), "--apart", part, form, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(f"{part} {form}: done", file=sys.stderr, flush=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _step_table(found: dict[str, list[dict[str, float]]], lengths: list[int]) -> str:
    lines = ["| Seconds of a step, MiB beyond the start | " + " | ".join(f"{length:,}" for length in lengths) + " |"]
    lines.append("|---|" + "---|" * len(lengths))
    for form, points in found.items():
        cells = [f"{point['seconds']:.2f} s, {point['bytes'] / 2**20:,.0f} MiB" for point in points]
        lines.append(f"| {form} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _loss_table(found: dict[str, list[dict[str, float]]]) -> str:
    lines = ["| Held-out bits a byte after processor seconds of training | steps | half the time | all of it |"]
    lines.append("|---|---|---|---|")
    for form, points in found.items():
        half, last = points[len(points) // 2], points[-1]
        said = [f"{point['bits']:.3f} ({point['seconds']:.0f} s)" for point in (half, last)]
        lines.append(f"| {form} | {last['steps']:.0f} | {said[0]} | {said[1]} |")
    return "\n".join(lines)


def _draw(stepped: dict[str, list[dict[str, float]]], learnt: dict[str, list[dict[str, float]]], path: Path) -> None:
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    times, memory, curves = figure.subplots(1, 3)
    for form, points in stepped.items():
        lengths = [point["length"] for point in points]
        times.plot(lengths, [point["seconds"] for point in points], "o-", label=form)
        memory.plot(lengths, [point["bytes"] / 2**20 for point in points], "o-", label=form)
    for form, points in learnt.items():
        after = points[1:]  # untrained, all are alike
        curves.plot([point["seconds"] for point in after], [point["bits"] for point in after], "o-", label=form)
    for axes, x, y in (
        (times, "positions", "processor seconds of a step"),
        (memory, "positions", "MiB beyond the start"),
        (curves, "processor seconds of training", "held-out bits a byte"),
    ):
        axes.set(xlabel=x, ylabel=y)
        if axes is not curves:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
        if axes.lines:
            axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def _surroundings() -> str:
    information = Path("/proc/cpuinfo")
    name = re.search(r"model name\s*: (.*)", information.read_text()) if information.exists() else None
    return (
        f"{date.today()}, `python -m tests.benchmarks.sparse {' '.join(sys.argv[1:])}`, "
        f"{name[1] if name else platform.processor()}, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, torch {torch.__version__}, megatron-core {megatron.core.__version__}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a file of text; its last tenth is held out")
    parser.add_argument("--out", type=Path, default=Path("sparse.png"))
    parser.add_argument("--only", choices=("steps", "losses"))
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each form's training")
    parser.add_argument("--tiny", action="store_true", help="one form, short rows, two steps")
    parser.add_argument("--apart", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.apart:
        part, form, *more = options.apart
        points = steps(form, options.text, [int(one) for one in more]) if part == "steps" else losses(
            form, options.text, int(more[0]), float(more[1])
        )  # fmt: skip
        for point in points:
            print(json.dumps(point), flush=True)
        return
    lengths, length, seconds = sorted(options.lengths), LENGTH, options.seconds
    stepping, learning = tuple(DECODERS), LEARNERS
    if options.tiny:
        lengths, length, seconds, stepping, learning = [512, 1024], 512, 0.1, ("banded 256",), ("BigBird 64 encoder",)
    stepped, learnt = {}, {}
    if options.only != "losses":
        stepped = {form: _apart(options, "steps", form, *map(str, lengths)) for form in stepping}
        print(_step_table(stepped, lengths) + "\n", flush=True)
    if options.only != "steps":
        learnt = {form: _apart(options, "losses", form, str(length), str(seconds)) for form in learning}
        print(_loss_table(learnt) + "\n", flush=True)
    _draw(stepped, learnt, options.out)
    print(f"{_surroundings()}; drawn in {options.out}")


if __name__ == "__main__":
    main()
