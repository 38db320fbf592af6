"""`pretrain import hf DIR|NAME|peft DIR|gguf FILE [--revision NAME] [--base DIR] [--merge] [--out RUN]`"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pretrain.commands.arguments import Parser, check_directory
from pretrain.errors import ConfigError

if TYPE_CHECKING:
    from pretrain.checkpoint.hf.hub import ModelSource
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
            "hf HuggingFaceTB/SmolLM2-135M --out runs/smollm2",
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
        help="Local directory that save_pretrained wrote (hf, peft), or file (gguf); or, for hf, where there is no "
        "such directory, the name of a model on the Hugging Face hub, which is downloaded.",
    )
    parser.add_argument(
        "--revision",
        metavar="NAME",
        help="Branch, tag or commit of a model on the hub (default: main).",
    )
    parser.add_argument(
        "--base",
        metavar="DIR",
        help="Directory, or name on the hub, of the base model of a peft import (default: the one that its "
        "adapter_config.json names).",
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help="Add the updates of a peft import to the weights, instead of a run with finetune.lora.",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="Run directory to create (default: runs/NAME, from SOURCE's name)."
    )
    options = parser.parse(argv)
    source = Path(options.source).resolve()
    out = options.out or Path("runs") / (source.stem if options.format == "gguf" else source.name)
    check_directory("--out", out)
    if options.format != "peft" and (options.base is not None or options.merge):
        raise ConfigError("--base and --merge are of peft imports: leave them out")
    if options.format == "gguf":
        if options.revision is not None:
            raise ConfigError("--revision is of names on the hub, and a GGUF file has none: leave it out")
        from pretrain.checkpoint.hf.gguf import unpack

        with TemporaryDirectory() as temporary:
            unpack(source, Path(temporary) / source.stem)
            _import(Path(temporary) / source.stem, out)
        return 0
    from pretrain.checkpoint.hf.hub import find

    if options.format == "hf":
        found = find(options.source, options.revision)
        _import(found.path, out, source=found)
        return 0
    from pretrain.checkpoint.hf.peft import unpack_adapter

    if options.base is None and options.revision is not None:
        raise ConfigError("--revision is of names on the hub: name one with --base, or leave it out")
    base = None if options.base is None else find(options.base, options.revision).path
    with TemporaryDirectory() as temporary:
        directory = Path(temporary) / source.name
        _import(directory, out, unpack_adapter(Path(options.source), base, directory, out, options.merge))
    return 0


def _import(
    directory: Path, out: Path, adapter: "PeftAdapter | None" = None, source: "ModelSource | None" = None
) -> None:  # fmt: skip
    from pretrain.checkpoint.hf.imports import goes_by_layer, import_hf, read_config
    from pretrain.evaluate.opening import build_empty
    from pretrain.observe.ending import after_import

    config = read_config(directory, out, None if source is None else source.name)
    if adapter is not None:
        config = adapter.config_with_updates(config, directory)
    engine = build_empty(config, by_layer=adapter is None and goes_by_layer(config))
    origin = None if source is None else source.origin

    def warn(line: str) -> None:
        print(f"warning: {line}", file=sys.stderr)

    agreement = import_hf(directory, config, engine, warn, adapter, source=origin)
    print("\n".join([f"{out}: {agreement}", *after_import(config)]))
