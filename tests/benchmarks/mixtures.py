"""A mixture of experts against a dense model that computes as much for each token, on enwik8.

    python -m examples.enwik8 datasets/enwik8.xml
    pretrain data build data/text input=datasets/enwik8.xml output=datasets/enwik8 \
        tokenizer.vocabulary=1024 validation_fraction=0.03
    python -m tests.benchmarks.mixtures datasets/enwik8 runs/mixtures [--steps N] [--rate RATE] [--seeds N ...]

Both are Llamas of 3 layers of width 96. A token passes through 256 features of each dense feed-forward layer, or
through 2 of 8 experts with 128 features each; the mixture computes its router besides, 1% of a layer. Learning rates
are swept with the first seed, by factors of 2, until the best one is between two others; then the best is repeated with
the other seeds. `--rate` leaves out the sweep. Runs that are done are not repeated. It takes about 15 minutes of a
processor.
"""

import argparse
from pathlib import Path

from tests.benchmarks.swept import best_rate, held_out_loss, shown

STEPS = 400
SEEDS = (1, 2, 3)
FIRST_RATE = 4e-3
MODELS = {
    "dense": ["model.ffn=256"],
    "mixture": ["model.ffn=128", "model.experts={count: 8, top_k: 2, balance_loss: 0.01, z_loss: 0.001}"],
}
SHARED = [
    "model.family=llama", "model.norm_type=rms", "model.bias=false", "model.activation=gated_silu", "model.layers=3",
    "model.hidden=96", "model.heads=4", "model.head_dim=24", "model.init.std=0.02",
    "batch.sequences=8", "batch.micro_sequences=8", "schedule.name=cosine", "schedule.warmup_steps=40",
    "evaluate.sequences=512",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    arguments = parser.parse_args()
    steps, seeds = arguments.steps, arguments.seeds

    def loss(model: str, rate: float, seed: int) -> float:
        settings = [f"data.path={arguments.data}", *SHARED, *MODELS[model]]
        return held_out_loss(arguments.folder, (model, rate, steps, seed), "debug/ladder", settings)

    for model in MODELS:
        rate = arguments.rate or best_rate(FIRST_RATE, lambda rate: loss(model, rate, seeds[0]))  # noqa: B023
        print(f"{model:7} {steps} steps at {rate:g}: {shown([loss(model, rate, seed) for seed in seeds])}", flush=True)


if __name__ == "__main__":
    main()
