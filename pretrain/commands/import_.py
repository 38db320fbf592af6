"""`pretrain import hf DIR|NAME|peft DIR|gguf FILE [--revision NAME] [--base DIR] [--merge] [--out RUN] ...`"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pretrain.commands.arguments import Parser, check_directory
from pretrain.errors import ConfigError

if TYPE_CHECKING:
    from pretrain.interop.hf.hub import ModelSource
    from pretrain.interop.peft.unpack import UnpackedAdapter

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
"""Names here, for the help, as the table that has them imports torch."""


def hf_model_types() -> list[str]:
    """Every `model_type` of Hugging Face that is imported."""
    from pretrain.model_spec.hf_classes import by_model_type

    return sorted({*by_model_type(), "gemma3"})  # of which the text model is imported


def main(argv: list[str]) -> int:
    """Makes a run with checkpoint 0 of another library's weights, if they pass the gate."""
    parser = _parser()
    options = parser.parse(argv)
    source = Path(options.source).resolve()
    out = options.out or Path("runs") / (source.stem if options.format == "gguf" else source.name)
    check_directory("--out", out)
    if options.format != "peft" and (options.base is not None or options.merge):
        raise ConfigError("--base and --merge are of peft imports: leave them out")
    if options.format != "hf" and options.random_head:
        raise ConfigError("--random-head is of hf imports: leave it out")
    if options.add_tokens is None and options.new_rows is not None:
        raise ConfigError("--new-rows is of the tokens of --add-tokens: name that, or leave it out")
    if options.add_tokens is not None and options.format == "peft":
        raise ConfigError(
            "--add-tokens is of whole models: import the adapter with --merge, export that run with --to hf, and "
            "import the export with --add-tokens"
        )
    _IMPORTS[options.format](options, out)
    return 0


def _parser() -> Parser:
    parser = Parser(
        "import",
        "Creates a run whose checkpoint 0 holds another library's weights, after checking that the logits match that "
        "library's.",
        (
            "hf downloads/gpt2 --out runs/gpt2",
            "hf HuggingFaceTB/SmolLM2-135M --out runs/smollm2",
            "gguf downloads/SmolLM2-135M.gguf --out runs/smollm2",
            "peft downloads/adapter --base downloads/gpt2 --out runs/tuned",
            "hf downloads/gpt2 --add-tokens medicine.txt --out runs/gpt2",
        ),
    )
    parser.add_argument(
        "format",
        choices=["hf", "gguf", "peft"],
        help=f"Format: hf, Hugging Face's transformers ({', '.join(hf_model_types())}); gguf, llama.cpp's "
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
        "--random-head",
        action="store_true",
        help="Initialize the output projection of a decoder randomly if the model has none; without it, such a model "
        "is refused.",
    )
    _add_vocabulary(parser)
    return parser


def _add_vocabulary(parser: Parser) -> None:
    """Options for changes of a model's vocabulary and head."""
    parser.add_argument(
        "--add-tokens",
        type=Path,
        metavar="FILE",
        help="Add tokens to the vocabulary: a text with one in each line, or a tokenizer whose new pieces are added.",
    )
    parser.add_argument(
        "--new-rows",
        choices=["pieces", "distribution"],
        help="Initial rows of added tokens: pieces (the default), the mean of the rows of the pieces that their text "
        "was before; or distribution, drawn from mean and covariance of all rows.",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="Run directory to create (default: runs/NAME, from SOURCE's name)."
    )
    parser.add_argument(
        "--end-of-text",
        metavar="NAME",
        help="Name of the special token after each document, such as '<|end_of_text|>' (default: the one that the "
        "tokenizer and the files beside it give).",
    )
    parser.add_argument(
        "--begin-of-text",
        metavar="NAME",
        help="Name of the special token before each document, such as '<s>', or off (default: the one that the "
        "tokenizer and the files beside it add to a text).",
    )


def _import_hf(options: argparse.Namespace, out: Path) -> None:
    from pretrain.interop.hf.hub import find

    found = find(options.source, options.revision)
    _import_grown(options, found.path, out, found)


def _import_gguf(options: argparse.Namespace, out: Path) -> None:
    if options.revision is not None:
        raise ConfigError("--revision is of names on the hub, and a GGUF file has none: leave it out")
    from pretrain.interop.gguf.unpack import unpack

    source = Path(options.source).resolve()
    with TemporaryDirectory() as temporary:
        unpack(source, Path(temporary) / source.stem)
        _import_grown(options, Path(temporary) / source.stem, out)


def _import_peft(options: argparse.Namespace, out: Path) -> None:
    from pretrain.interop.hf.hub import find
    from pretrain.interop.peft.unpack import unpack_adapter

    if options.base is None and options.revision is not None:
        raise ConfigError("--revision is of names on the hub: name one with --base, or leave it out")
    source = Path(options.source)
    base = None if options.base is None else find(options.base, options.revision).path
    with TemporaryDirectory() as temporary:
        directory = Path(temporary) / source.resolve().name
        adapter = unpack_adapter(source, base, directory, out, merge=options.merge, warn=_warn)
        _import(options, directory, out, adapter=adapter)


def _import_grown(options: argparse.Namespace, directory: Path, out: Path, source: "ModelSource | None" = None) -> None:
    """Imports `directory`, with the tokens of --add-tokens."""
    if options.add_tokens is None:
        _import(options, directory, out, source=source)
        return
    from pretrain.interop.hf.grow import NewRows, grown_folder

    new_rows: NewRows = options.new_rows or "pieces"
    with grown_folder(directory, options.add_tokens, new_rows, print, random_head=options.random_head) as grown:
        _import(options, grown, out, source=source)


def _import(
    options: argparse.Namespace,
    directory: Path,
    out: Path,
    *,
    adapter: "UnpackedAdapter | None" = None,
    source: "ModelSource | None" = None,
) -> None:
    """Imports `directory`, which comes from `source` on the hub, or else is the user's, into the run `out`."""
    from data_pipeline.tokenizers.released import DocumentBounds
    from pretrain.evaluate.opening import build_empty
    from pretrain.interop.hf.imports import goes_by_layer, import_hf, read_config
    from pretrain.observe.ending import after_import

    bounds = DocumentBounds(options.begin_of_text, options.end_of_text)
    name = None if source is None else source.name
    config = read_config(directory, out, bounds, name=name, random_head=options.random_head)
    if adapter is not None:
        config = adapter.config_with_updates(config, directory)
    engine = build_empty(config, by_layer=adapter is None and goes_by_layer(config))
    origin = None if source is None else source.origin
    agreement = import_hf(directory, config, engine, _warn, adapter, bounds=bounds, source=origin)
    print("\n".join([f"{out}: {agreement}", *after_import(config)]))


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


_IMPORTS: dict[str, Callable[[argparse.Namespace, Path], None]] = {
    "hf": _import_hf,
    "gguf": _import_gguf,
    "peft": _import_peft,
}
