"""The greatest memory of an import, of made-up Llamas in bf16 that lie in several files.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.import_memory [--layers 31] [--files 8]

31 layers have 2.0 billion parameters: 4 GB of disk for the folder, and 8 GB for the checkpoint.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import save_file

from data_pipeline.tokenizers.load import train_tokenizer

_HIDDEN, _VOCABULARY = 2048, 32_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[31], help="sizes, the smaller ones first")
    parser.add_argument("--files", type=int, default=8)
    options = parser.parse_args()
    print("| Parameters | Largest file: MB | Greatest resident memory: MB |\n|---|---|---|")
    for layers in sorted(options.layers):
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory) / "model"
            parameters = _write(folder, layers, options.files)
            largest = max(path.stat().st_size for path in folder.glob("*.safetensors"))
            command = [sys.executable, "-m", "pretrain", "import", "hf", str(folder), "--out", f"{directory}/run"]
            alone = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=alone)
        peak_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of the hungriest so far
        print(f"| {parameters / 1e9:.3f}B | {largest / 1e6:.0f} | {1.024e-3 * peak_kb:.0f} |", flush=True)


def _write(folder: Path, layers: int, files: int) -> int:
    """Writes a folder whose weights are drawn, in a few files. Returns the number of parameters."""
    settings = hf.LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=_HIDDEN,
        intermediate_size=4 * _HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    settings.save_pretrained(folder)
    train_tokenizer(["abcd efgh ijkl " * 50], "byte_bpe", 270).save(folder / "tokenizer.json")
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in hf.LlamaForCausalLM(settings).named_parameters()}
    total, placed = sum(shape.numel() for shape in shapes.values()), 0
    parts: list[list[str]] = [[] for _ in range(files)]
    for name, shape in shapes.items():
        parts[min(placed * files // total, files - 1)].append(name)
        placed += shape.numel()
    draw, places = torch.Generator().manual_seed(0), {}
    for number, names in enumerate(parts):
        values = {
            name: torch.empty(shapes[name], dtype=torch.bfloat16).uniform_(-0.03, 0.03, generator=draw)
            for name in names
        }
        file = f"model-{number + 1:05}-of-{files:05}.safetensors"
        save_file(values, folder / file, {"format": "pt"})
        places |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return total


if __name__ == "__main__":
    main()
