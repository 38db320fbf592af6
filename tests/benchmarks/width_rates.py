"""The best learning rate at each width, standard and with muP; docs/mup.md has the figures.

    head -c 1500000 datasets/enwik8.xml > datasets/mup.xml        # python -m examples.enwik8 datasets/enwik8.xml
    pretrain data build data/text input=datasets/mup.xml output=datasets/mup tokenizer.vocabulary=512
    python -m tests.benchmarks.width_rates datasets/mup runs/width-rates.json [--seed N] [--widths N,...] [KEY=VALUE]

On a grid of powers of two it looks around the best rate of the width before, and further until the best has a worse one
on both sides. Runs that are in the file already are not repeated.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from torch._C._distributed_c10d import HashStore

from pretrain.commands.arguments import numbers
from pretrain.config.load import load, validate
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import resolve
from pretrain.data.stream import open_stream
from pretrain.engine import device, rendezvous
from pretrain.engine.make import make_engine
from pretrain.layout.layout import plan_layout
from pretrain.run_length.schedule import learning_rate
from pretrain.scaling.coordinates import PARAMETRIZATIONS, configs

WIDTHS, STEPS, FIRST = (64, 128, 256, 512), 100, -7
"""and the power of two that is the middle of the first width's rates"""
JUDGED = 20  # last steps, whose losses are averaged
SETTINGS = [
    "model.hidden=64", "model.heads=4", "model.head_dim=16", "model.layers=2", "model.sequence_length=64",
    "batch.sequences=8", "batch.micro_sequences=8",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("overrides", nargs="*", help="keys of the config, such as the optimizer")
    parser.add_argument("--seed", type=int, default=1234, help="run.seed (default: that of debug/ladder)")
    parser.add_argument("--widths", type=numbers, default=list(WIDTHS), help="values of model.hidden (default: all)")
    options = parser.parse_args()
    file, widths = options.file, options.widths
    settings = [*SETTINGS, f"data.path={options.data}", f"run.seed={options.seed}", *options.overrides]
    base = resolve(load(RunConfig, "debug/ladder", settings))
    found: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    device.install()
    store = HashStore()
    by_name = {(width, kind): config for width, kind, config in configs(base, widths, STEPS)}
    middles = dict.fromkeys(PARAMETRIZATIONS, FIRST)
    for width in widths:
        for kind, middle in middles.items():

            def loss(power: int, width: int = width, kind: str = kind) -> float:
                name = f"{'both' if width == min(widths) else kind} {width} 2^{power}"
                if name not in found:
                    found[name] = _loss(by_name[width, kind], 2.0**power, store, name)  # type: ignore[index]
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(json.dumps(found, indent=1))
                    print(f"{name}: {found[name]:.4f}", flush=True)
                return found[name]

            low, high = middle - 1, middle + 1
            while True:
                losses = {power: loss(power) for power in range(low, high + 1)}
                middle = min(losses, key=lambda power: losses[power])
                if low < middle < high:
                    break
                low, high = min(low, middle - 1), max(high, middle + 1)
            middles[kind] = middle
            print(f"{kind}, width {width}: best 2^{middle} = {2.0**middle:.2g}, loss {losses[middle]:.4f}", flush=True)


def _loss(config: RunConfig, rate: float, store: Any, name: str) -> float:
    """Mean training loss of the last steps of a run that warms up, stays, and decays over its last third."""
    tree = config.model_dump(mode="json")
    tree["optimizer"]["learning_rate"] = rate
    tree["schedule"] = {"name": "wsd", "warmup_steps": STEPS // 10, "decay_steps": STEPS // 3, "final_fraction": 0.0}
    config = validate(RunConfig, tree, name)
    with rendezvous.temporary_process_group(store, name, 0, 1, config.health.timeout_s):
        engine = make_engine(config, plan_layout(config, 1))
        engine.initialise()
        stream, count, losses = open_stream(config)[0], config.batch.sequences, []
        for step in range(1, STEPS + 1):
            batch = stream.batch((step - 1) * count, count, 0, 1)
            result = engine.train_step(batch, learning_rate(config, (step, 0), (STEPS, 0)), step)
            losses.append(result.loss_sum / result.token_count)
            if not math.isfinite(losses[-1]):
                return math.inf
    return float(np.mean(losses[-JUDGED:]))


if __name__ == "__main__":
    main()
