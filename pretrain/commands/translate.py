"""`pretrain translate CHECKPOINT_OR_RUN FILE [--beam N] [--penalty X] [--longest N] [--out FILE] [--nproc N]
[key=value ...]`"""

from pathlib import Path

from pretrain.commands.arguments import Parser, check_writable, count
from pretrain.commands.local_ranks import start_ranks, starts_ranks, under_launcher
from pretrain.process.signals import unblock


def main(argv: list[str]) -> int:
    """Writes a target for each source of a file, and prints BLEU where the file has targets."""
    unblock()
    parser = Parser(
        "translate",
        "Generates a target for each source of a file by beam search, and computes BLEU if the file has targets.",
        ("runs/transformer test.jsonl --beam 4",),
    )
    parser.add_checkpoint()
    parser.add_argument("file", type=Path, help="JSON lines with the key source, and target to compute BLEU")
    parser.add_overrides("such as parallel.tensor=2")
    parser.add_trust_code()
    parser.add_argument(
        "--beam", type=count, default=4, help="hypotheses of beam search (default 4; 1: greedy decoding)"
    )
    parser.add_argument(
        "--penalty", type=float, default=0.6, help="length penalty of beam search (default 0.6; 0 turns it off)"
    )
    parser.add_argument(
        "--longest", type=count, help="maximum number of tokens per target (default: the model's target length)"
    )
    parser.add_argument("--out", type=Path, help="output file, one hypothesis per line (default: print)")
    parser.add_nproc("number of local ranks, which share the sources (default: one rank)")
    options = parser.parse(argv)
    from pretrain.commands.recorded import open_run

    if options.out is not None:
        check_writable(options.out)
    one_rank = options.nproc is None and not under_launcher()
    candidates, expected = open_run(options, options.overrides, one_rank)
    if starts_ranks(expected, options.nproc, trains=False):
        return start_ranks(options.nproc, ["translate", *argv], None)
    from pretrain.commands.scoring import write_translation
    from pretrain.evaluate.opening import open_checkpoint

    asked = {f"--{name}": getattr(options, name) for name in ("beam", "penalty", "longest")}
    config, checkpoint = open_checkpoint(candidates, options.overrides, one_rank, asked)
    write_translation(config, checkpoint, options.file, options.beam, options.penalty, options.longest, options.out)
    return 0
