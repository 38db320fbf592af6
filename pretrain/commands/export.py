"""`pretrain export CHECKPOINT_OR_RUN --to hf|peft|gguf DIR [--base NAME] [--encoder]
[--dtype fp32|bf16|fp16|q8_0|source] [--shard-size SIZE] [--model discriminator|generator]`"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.commands.arguments import Parser, check_directory
from pretrain.errors import ConfigError

if TYPE_CHECKING:
    from pretrain.config.run_config import RunConfig

_DTYPES = {"hf": ("fp32", "bf16", "fp16", "source"), "peft": ("fp32",), "gguf": ("fp32", "fp16", "q8_0")}
"""format -> types of its weights"""


def main(argv: list[str]) -> int:
    """Writes weights for another library, if they pass the gate."""
    options = _parser().parse(argv)
    _check(options)
    kind, directory = options.to
    most = _most_bytes(options.shard_size)
    from pretrain.commands.checkpoint_argument import find_checkpoints

    candidates, _ = find_checkpoints(options, [], one_rank=True, model=options.model)
    from pretrain.evaluate.opening import open_checkpoint

    config, checkpoint = open_checkpoint(candidates, ["precision=fp32"], one_rank=True, model=options.model)
    from pretrain.checkpoint.state import check_reads_forward

    check_reads_forward(config, options.checkpoint, "no class of transformers does")
    print(f"{directory}: {_export(options, checkpoint, config, most)}")
    from pretrain.interop.hf.export import leaves_out_mtp

    if leaves_out_mtp(checkpoint, config, to_folder=kind == "hf" and not options.encoder):
        print("warning: not exported: the modules of model.mtp, which this format has no place for", file=sys.stderr)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Raises ConfigError for options that the format has not, and for a directory that cannot be written."""
    kind, directory = options.to
    if kind not in _DTYPES:
        raise ConfigError(f"--to {kind}: known formats are {', '.join(_DTYPES)}")
    if options.base is not None and kind != "peft":
        raise ConfigError("--base names the base model of an adapter: leave it out, or export with --to peft")
    if options.encoder and kind != "hf":
        raise ConfigError("--encoder is for --to hf: other formats are of a model with its head")
    if not directory or options.base == "":
        raise ConfigError(f"{'--base' if directory else f'--to {kind}'} '': an empty text is no path")
    if options.dtype not in _DTYPES[kind]:
        raise ConfigError(f"--dtype {options.dtype}: --to {kind} stores {', '.join(_DTYPES[kind])}")
    if options.shard_size is not None and kind != "hf":
        raise ConfigError(f"--shard-size is for --to hf: leave it out with --to {kind}")
    check_directory(f"--to {kind}", Path(directory).parent if kind == "gguf" else Path(directory))


def _most_bytes(shard_size: str | None) -> int | None:
    """Bytes of `--shard-size`. Raises ConfigError."""
    from pretrain.interop.hf.repack import size_in_bytes

    try:
        return None if shard_size is None else size_in_bytes(shard_size)
    except ValueError as error:
        raise ConfigError(f"--shard-size: {error}") from None


def _export(options: argparse.Namespace, checkpoint: Path, config: "RunConfig", most: int | None) -> str:
    """Writes the format of `--to`, in files of at most `most` bytes, and returns what the gate found."""
    from pretrain.evaluate.opening import build_scorer

    kind, out, scorer = options.to[0], Path(options.to[1]), partial(build_scorer, config, checkpoint)
    if kind == "peft":
        from pretrain.interop.peft.export import export_adapter

        return str(export_adapter(checkpoint, config, out, scorer, options.base))
    if kind == "gguf":
        from pretrain.interop.gguf.export import export_gguf

        return str(export_gguf(checkpoint, config, out, scorer, dtype=options.dtype))
    from pretrain.interop.hf.export import dtype_of_source, export
    from pretrain.interop.hf.repack import StoredAs

    dtype = dtype_of_source(checkpoint) if options.dtype == "source" else options.dtype
    stored = StoredAs(dtype, most)
    return str(export(checkpoint, config, out, scorer, encoder=options.encoder, stored=stored))


def _parser() -> Parser:
    parser = Parser(
        "export",
        "Exports a checkpoint's weights and tokenizer to another library's format, after checking that the library's "
        "logits match.",
        (
            "runs/book --to hf exported/book",
            "runs/book --to hf exported/book --dtype bf16 --shard-size 2GB",
            "runs/book --to gguf exported/book.gguf --dtype q8_0",
            "runs/tuned --to peft exported/adapter",
        ),
    )
    parser.add_checkpoint()
    parser.add_argument(
        "--to",
        nargs=2,
        metavar=("FORMAT", "DIR"),
        required=True,
        help="Format, and a directory that does not exist. FORMAT is hf: safetensors, with config, tokenizer and model "
        "card, for transformers; or peft: the low-rank updates of a run with finetune.lora, and its task head, for "
        "PEFT; or gguf: a Llama, Qwen2 or Qwen3 for llama.cpp, where DIR is the file to write.",
    )
    parser.add_argument(
        "--base",
        metavar="NAME",
        help="Base model that a peft export names: a directory, whose weights are compared with the run's frozen ones, "
        "or a name on the Hub, which is not checked (default: DIR/base, to which these weights are exported).",
    )
    parser.add_argument(
        "--encoder",
        action="store_true",
        help="Export the encoder alone, without its head, for DeBERTa, whose mask decoder and detector no class of "
        "transformers has. Its last hidden states are compared instead of logits.",
    )
    parser.add_argument(
        "--dtype",
        choices=("fp32", "bf16", "fp16", "q8_0", "source"),
        default="fp32",
        help="Data type of the exported weights (default fp32): of hf, fp32, bf16 or fp16; of gguf, fp32, fp16 or "
        "q8_0. source, of hf: the type of the directory that the run was imported from. The gate compares fp32 "
        "weights; the difference that rounding makes is printed.",
    )
    parser.add_argument(
        "--shard-size",
        metavar="SIZE",
        help="Largest size of a weight file of an hf export, such as 2GB or 512MiB; several files get an index "
        "(default: one file).",
    )
    parser.add_model("export")
    parser.add_trust_code()
    return parser
