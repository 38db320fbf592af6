"""`pretrain import hf DIR|peft DIR|gguf FILE [--base DIR] [--merge] [--out RUN]`"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pretrain.commands.arguments import Parser, check_directory
from pretrain.errors import ConfigError

if TYPE_CHECKING:
    from pretrain.checkpoint.hf.peft import PeftAdapter

HF_MODEL_TYPES = (
    *(
        "albert",
        "bart",
        "bert",
        "big_bird",
        "bloom",
        "canine",
        "ctrl",
        "deberta",
        "deberta-v2",
        "deepseek_v2",
        "deepseek_v3",
        "distilbert",
        "dots1",
        "electra",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gpt2",
        "gpt_neo",
        "llama",
    ),
    *("longformer", "marian", "mistral", "mixtral", "olmoe", "openai-gpt", "pegasus", "qwen2", "qwen3", "qwen3_moe"),
    *("roberta", "roformer", "t5", "xlm", "xlm-roberta", "xlnet"),
)
GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
"""Names here, for the help, as the tables that have them import torch."""


def main(argv: list[str]) -> int:
    """Makes a run with checkpoint 0 of another library's weights, if they pass the gate."""
    parser = Parser(
        "import",
        "Creates a run whose checkpoint 0 holds another library's weights, after checking that the logits match that "
        "library's.",
        (
            "hf downloads/gpt2 --out runs/gpt2",
            "gguf downloads/SmolLM2-135M.gguf --out runs/smollm2",
            "peft downloads/adapter --base downloads/gpt2 --out runs/tuned",
        ),
    )
    parser.add_argument(
        "format",
        choices=["hf", "gguf", "peft"],
        help=f"Format: hf, Hugging Face's transformers ({', '.join(HF_MODEL_TYPES)}); gguf, llama.cpp's "
        f"({', '.join(GGUF_ARCHITECTURES)}; quantized weights become fp32); or peft, low-rank updates (LoRA) of a "
        "model of Hugging Face's.",
    )
    parser.add_argument(
        "source",
        type=Path,
        help="Local directory that save_pretrained wrote (hf, peft), or file (gguf); not a Hub name.",
    )
    parser.add_argument(
        "--base",
        type=Path,
        metavar="DIR",
        help="Directory of the base model of a peft import (default: the one that its adapter_config.json names).",
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help="Add the updates of a peft import to the weights, instead of a run with finetune.lora.",
    )
    parser.add_argument(
        "--random-head",
        action="store_true",
        help="Initialize the output projection of a decoder randomly if the model has none; without it, such a model "
        "is refused.",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="Run directory to create (default: runs/NAME, from SOURCE's name)."
    )
    options = parser.parse(argv)
    source = options.source.resolve()
    out = options.out or Path("runs") / (source.stem if options.format == "gguf" else source.name)
    check_directory("--out", out)
    if options.format != "peft" and (options.base is not None or options.merge):
        raise ConfigError("--base and --merge are of peft imports: leave them out")
    if options.format != "hf" and options.random_head:
        raise ConfigError("--random-head is of hf imports: leave it out")
    if options.format == "hf":
        _import(options.source, out, random_head=options.random_head)
        return 0
    if options.format == "peft":
        from pretrain.checkpoint.hf.peft import unpack_adapter

        with TemporaryDirectory() as temporary:
            directory = Path(temporary) / source.name
            _import(directory, out, unpack_adapter(options.source, options.base, directory, out, options.merge))
        return 0
    from pretrain.checkpoint.hf.gguf import unpack

    with TemporaryDirectory() as temporary:
        unpack(source, Path(temporary) / source.stem)
        _import(Path(temporary) / source.stem, out)
    return 0


def _import(
    directory: Path, out: Path, adapter: "PeftAdapter | None" = None, random_head: bool = False
) -> None:  # fmt: skip
    from pretrain.checkpoint.hf.imports import import_hf, read_config
    from pretrain.evaluate.opening import build_empty
    from pretrain.observe.ending import after_import

    config = read_config(directory, out, random_head)
    if adapter is not None:
        config = adapter.config_with_updates(config, directory)
    engine = build_empty(config)
    agreement = import_hf(directory, config, engine, lambda line: print(f"warning: {line}", file=sys.stderr), adapter)
    print("\n".join([f"{out}: {agreement}", *after_import(config)]))
