"""`pretrain export CHECKPOINT_OR_RUN --to hf DIR [--model discriminator|generator]`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, check_directory
from pretrain.errors import ConfigError


def main(argv: list[str]) -> int:
    """Writes weights for another library, if they pass the gate."""
    parser = Parser(
        "export",
        "Exports a checkpoint's weights and tokenizer to another library's format, after checking that the library's "
        "logits match.",
        ("runs/book --to hf exported/book",),
    )
    parser.add_checkpoint()
    parser.add_argument(
        "--to",
        nargs=2,
        metavar=("FORMAT", "DIR"),
        required=True,
        help="Format and directory. FORMAT is hf: safetensors in fp32, with config, tokenizer and model card, for "
        "transformers. DIR must not exist.",
    )
    parser.add_argument(
        "--model",
        choices=("discriminator", "generator"),
        help="Model to export of a run that trains two (ELECTRA). Default: the only one of the run.",
    )
    parser.add_trust_code()
    options = parser.parse(argv)
    kind, directory = options.to
    if kind != "hf":
        raise ConfigError(f"--to {kind}: the one known format is hf")
    if not directory:
        raise ConfigError("--to hf '': an empty text is no path")
    check_directory("--to hf", Path(directory))
    from pretrain.commands.checkpoint_argument import find_checkpoints

    candidates, _ = find_checkpoints(options, [], one_rank=True)
    from pretrain.checkpoint.hf.export import export
    from pretrain.evaluate.opening import build_scorer, open_checkpoint

    config, checkpoint = open_checkpoint(candidates, ["precision=fp32"], one_rank=True, model=options.model)
    agreement = export(checkpoint, config, Path(directory), lambda: build_scorer(config, checkpoint))
    print(f"{directory}: {agreement}")
    return 0
