"""`pretrain translate CHECKPOINT_OR_RUN FILE [--beam N] [--penalty X] [--longest N] [--metric NAME]
[--tokenize NAME] [--out FILE] [--attention PICTURE] [--nproc N] [key=value ...]`"""

import sys
from pathlib import Path
from typing import get_args

from pretrain.commands.arguments import Parser, check_writable, count
from pretrain.commands.decoding import add_penalty
from pretrain.commands.local_ranks import SCORING_RANKS, needs_local_ranks, start_local_ranks, under_launcher
from pretrain.commands.output import print_lines, write_lines
from pretrain.config.evaluate import BleuTokenize
from pretrain.process.signals import unblock

_NAMES = {"bleu": "BLEU", "chrf": "chrF", "chrf++": "chrF++"}


def main(argv: list[str]) -> int:
    """Writes a target for each source of a file, and prints BLEU or chrF where the file has targets."""
    unblock()
    parser = _parser()
    options = parser.parse(argv)
    from pretrain.checkpoint.state import check_predicts_tokens
    from pretrain.commands.checkpoint_argument import find_checkpoints

    if options.out is not None:
        check_writable(options.out)
    if options.attention is not None:
        check_writable(options.attention)
    one_rank = options.nproc is None and not under_launcher()
    candidates, expected = find_checkpoints(options, options.overrides, one_rank)
    check_predicts_tokens(expected, options.checkpoint)
    if needs_local_ranks(expected, options.nproc, trains=False):
        return start_local_ranks(options.nproc, ["translate", *argv], None)
    from pretrain.evaluate.opening import open_checkpoint
    from pretrain.evaluate.translate import TranslationMetric, translate_file

    alike = {f"--{name}": getattr(options, name) for name in ("beam", "penalty", "longest", "metric", "tokenize")}
    config, checkpoint = open_checkpoint(candidates, options.overrides, one_rank, alike, "all")
    translated = translate_file(
        config,
        checkpoint,
        options.file,
        beam=options.beam,
        penalty=options.penalty,
        longest=options.longest,
        metric=TranslationMetric(options.metric, options.tokenize),
        picture=options.attention,
    )
    if translated is None:
        return 0
    if options.out is not None:
        write_lines(options.out, translated.hypotheses)
    else:
        print_lines(translated.hypotheses)
    if translated.cut:
        print(f"{translated.cut} sources were longer than the model reads, and were cut", file=sys.stderr)
    if translated.unspaced:
        print(
            f"warning: {translated.unspaced:,} targets are in a script without spaces, of which --tokenize "
            f"{options.tokenize} takes what white space separates for a word: give --tokenize zh, ja-mecab or char",
            file=sys.stderr,
        )
    if translated.score is not None:
        sentences, name = len(translated.hypotheses), _NAMES[options.metric]
        print(f"{name} {translated.score:.2f} ({sentences} sentences, beam {options.beam}, {translated.signature})")
    return 0


def _parser() -> Parser:
    parser = Parser(
        "translate",
        "Translates each source in a file by beam search. If the file has reference targets, the last line on stdout "
        "is their score by sacreBLEU, with its signature.",
        ("runs/transformer test.jsonl --beam 4",),
    )
    parser.add_checkpoint()
    parser.add_argument("file", type=Path, help="JSON Lines file with the key source, and target for a score.")
    parser.add_run_overrides()
    parser.add_trust_code()
    parser.add_argument("--beam", type=count, default=4, help="Beam width (default 4; 1: greedy).")
    add_penalty(parser, 0.6)
    parser.add_argument(
        "--longest", type=count, help="Maximum number of tokens per target (default: the model's target length)."
    )
    parser.add_argument(
        "--metric", choices=("bleu", "chrf", "chrf++"), default="bleu", help="What is computed (default bleu)."
    )
    parser.add_argument(
        "--tokenize",
        choices=get_args(BleuTokenize),
        default="13a",
        help="Tokenizer of sacreBLEU for BLEU (default 13a; zh, ja-mecab, ko-mecab for Chinese, Japanese, Korean; "
        "char or flores200 for any language).",
    )
    parser.add_argument("--out", type=Path, help="Output file, one hypothesis per line (default: stdout).")
    parser.add_argument(
        "--attention",
        type=Path,
        metavar="PICTURE",
        help="Draw what a recurrent decoder attends to, for the first four sources (.png, .svg or .pdf).",
    )
    parser.add_nproc(SCORING_RANKS)
    return parser
