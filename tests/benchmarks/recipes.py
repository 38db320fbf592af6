"""Samples of each objective, made on one CPU core.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.recipes TEXT [--length 512] [--rows 64]

TEXT is a file that `pretrain data build` reads. It becomes a dataset with a sentencepiece tokenizer of 8,192 pieces, in
a temporary directory; each objective then makes batches for two seconds.
"""

import argparse
import tempfile
import time
from pathlib import Path

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.registry import OBJECTIVES

_SECONDS = 2.0
CASES = {
    "causal": OBJECTIVES["causal"](),
    "causal, best fit": OBJECTIVES["causal"](packing="best_fit"),
    "masked": OBJECTIVES["masked"](),
    "masked, whole words": OBJECTIVES["masked"](whole_words=True),
    "masked, next sentence": OBJECTIVES["masked"](next_sentence=True),
    "denoising": OBJECTIVES["denoising"](noise_density=0.3),
    **{
        name: OBJECTIVES[name]()
        for name in ("span_corruption", "bert_style", "mass_style", "drop", "prefix_lm", "deshuffling")
    },
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rows", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        dataset = Path(directory) / "dataset"
        build(BuildConfig(input=options.text, output=dataset))
        print(f"{'objective':24} samples  ms a sample  million input tokens a second")
        for name, objective in CASES.items():
            tokenizer = SampleStream([(dataset, 1.0)], options.length, 0).datasets[0].tokenizer()
            stream = SampleStream([(dataset, 1.0)], objective.recipe(tokenizer, options.length), 0)
            stream.batch(0, options.rows)
            made, start = 0, time.process_time()
            while time.process_time() - start < _SECONDS:
                stream.batch(made, options.rows)
                made += options.rows
            ms = (time.process_time() - start) / made * 1e3
            print(f"{name:24} {stream.num_samples[0]:7,}  {ms:11.3f}  {options.length / ms / 1e3:10.2f}", flush=True)


if __name__ == "__main__":
    main()
