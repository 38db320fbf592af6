"""`pretrain generate CHECKPOINT_OR_RUN [--prompt TEXT]... | --file FILE | --interactive [--raw] [--temperature T]
[--top-k N] [--top-p P] [--beam N] [--penalty X] [--samples N] [--max-tokens N] [--stop TEXT]... [--seed N] [--out FILE]
[--model MODEL] [--nproc N] [key=value ...]`"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pretrain.commands.arguments import Parser, at_least_zero, check_writable, count, utf8
from pretrain.commands.decoding import HOW, add_decoding, decoding, flags
from pretrain.commands.local_ranks import SCORING_RANKS, needs_local_ranks, start_local_ranks, under_launcher
from pretrain.commands.output import print_lines, write_lines
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import Decoding
from pretrain.process.ranks import global_rank
from pretrain.process.signals import unblock

_HOW = (*HOW, "samples", "max_tokens", "stop")


def main(argv: list[str]) -> int:
    """Continues prompts, fills their gaps, or generates their targets: what the model was trained for."""
    unblock()
    options = _parser().parse(argv)
    prompts = _prompts(options)
    from pretrain.checkpoint.state import check_predicts_tokens, check_reads_forward
    from pretrain.commands.checkpoint_argument import find_checkpoints, use_newest

    if options.out is not None:
        check_writable(options.out)
    one_rank = options.nproc is None and not under_launcher()
    candidates, expected = find_checkpoints(options, options.overrides, one_rank, model=options.model)
    check_predicts_tokens(expected, options.checkpoint)
    if options.interactive or options.stop:
        option = "--interactive shows text as it comes" if options.interactive else "--stop ends a text at its right"
        check_reads_forward(expected, options.checkpoint, option)
    if expected.parallel.virtual > 1 or expected.parallel.context > 1:
        raise ConfigError("generation runs with parallel.virtual=1 and parallel.context=1, which change no text")
    if not expected.model.has_decoder:
        _refuse_decoding(options, expected.model.family)
    if needs_local_ranks(expected, options.nproc, trains=False):
        _decoding(options)  # so that a mistake is reported once
        return start_local_ranks(options.nproc, ["generate", *argv], None)
    from pretrain.evaluate.generate import GenerateRequest, generate
    from pretrain.evaluate.opening import open_checkpoint

    request = GenerateRequest(_decoding(options), options.max_tokens, options.stop)
    alike = {f"--{name.replace('_', '-')}": getattr(options, name) for name in (*_HOW, "model", "prompt", "seed")}

    def opened(now: list[Path]) -> tuple[RunConfig, Path]:
        return open_checkpoint(now, options.overrides, one_rank, alike, options.model)

    if options.interactive:
        from pretrain.commands.conversation import converse

        converse(*use_newest(options.checkpoint, candidates, opened), request, options.raw)
        return 0

    def generated(now: list[Path]) -> list[dict[str, Any]] | None:
        nonlocal prompts
        config, checkpoint = opened(now)
        prompts = prompts if prompts is not None else _standard_input()
        return generate(config, checkpoint, prompts, request)

    records = use_newest(options.checkpoint, candidates, generated)
    texts = prompts or []
    if records is None:
        return 0
    if options.out is None:
        print_lines(_lines(records))
        return 0
    write_lines(options.out, [json.dumps(record, ensure_ascii=False) for record in records])
    print(f"{len(records)} texts of {len(texts)} prompts: {options.out}")
    return 0


def _parser() -> Parser:
    parser = Parser(
        "generate",
        "Generates text from prompts: continuations, filled gaps, or targets, whichever the model was trained for.",
        ('runs/book --prompt "The" --temperature 0.8 --top-p 0.9', "runs/book --interactive"),
    )
    parser.add_checkpoint()
    parser.add_run_overrides()
    parser.add_trust_code()
    parser.add_model("use")
    parser.add_argument("--prompt", action="append", type=utf8, help="Prompt. Repeatable.")
    parser.add_argument(
        "--file", type=Path, help="File of prompts: one per line, or JSON Lines with the key prompt (*.jsonl)."
    )
    parser.add_argument(
        "--interactive",
        action="store_true",
        help="Read prompts from the keyboard and print each text token by token. If the run has a chat template, they "
        "are the user's turns of one conversation.",
    )
    parser.add_argument(
        "--raw", action="store_true", help="Continue the lines of --interactive as text, without a chat template."
    )
    parser.add_argument("--samples", type=count, help="Number of texts per prompt (default 1).")
    parser.add_argument(
        "--max-tokens",
        type=count,
        help="Maximum number of tokens per text (default 128, or fewer if the model has fewer left).",
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        type=utf8,
        help="String that ends a text, not included in it. Repeatable.",
    )
    parser.add_argument("--seed", type=at_least_zero, default=0, help="Seed of sampling (default 0).")
    parser.add_argument("--out", type=Path, help="Output file in JSON Lines (default: stdout, as text).")
    parser.add_nproc(SCORING_RANKS)
    add_decoding(parser, "Without these options, decoding is greedy; with --samples above 1, temperature is 1.")
    return parser


def _prompts(options: argparse.Namespace) -> list[str] | None:
    """The prompts given as options; None: typed or piped in. Raises ConfigError for none, or for several sources."""
    given = [f"--{name}" for name in ("prompt", "file", "interactive") if getattr(options, name)]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} each say where prompts come from: leave all but one out")
    if options.interactive and options.out is not None:
        raise ConfigError("--interactive shows text as it comes, and --out writes it to a file: leave one out")
    if options.raw and not options.interactive:
        raise ConfigError("--raw says how --interactive reads lines; without it no prompt is a turn: leave it out")
    if "" in options.stop:
        raise ConfigError("--stop '' would end every text at once: leave it out")
    if options.file is not None:
        return _read(options.file)
    if not given and not under_launcher() and sys.stdin.isatty():
        raise ConfigError("there is no prompt: give --prompt TEXT, --file FILE or --interactive, or pipe a text in")
    return options.prompt  # type: ignore[no-any-return]


def _standard_input() -> list[str]:
    """All that is piped in is one prompt, less the last newline. Raises ConfigError, on all ranks, if it is none."""
    from pretrain.engine.collective import gather

    read = sys.stdin.buffer.read() if global_rank() == 0 else b""
    content = gather(read)[0].removesuffix(b"\n")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError("standard input is not text in UTF-8: give --prompt TEXT or pipe a text in") from None
    if not text:
        raise ConfigError("standard input is empty, which is no prompt: give --prompt TEXT or pipe a text in")
    return [text]


def _lines(records: list[dict[str, Any]]) -> Iterator[str]:
    """A prompt, and below it each of its texts."""
    before = None
    for record in records:
        if record["prompt"] != before:
            yield f"[prompt] {record['prompt']}"
        before = record["prompt"]
        yield f"[text] {record.get('filled', record['text'])}"


def _read(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
        if lines[-1] == "":
            lines.pop()
        if path.suffix == ".jsonl":
            lines = [json.loads(line)["prompt"] for line in lines if line.strip()]
        "".join(map(str, lines)).encode()  # JSON can name half a character
    except OSError as error:
        raise ConfigError(f"--file {path} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--file {path} is not {_kind(path)} ({type(error).__name__}: {error})") from None
    if not lines or not all(isinstance(line, str) for line in lines):
        raise ConfigError(f"--file {path} has {'a prompt that is no text' if lines else 'no prompts'}")
    return lines


def _kind(path: Path) -> str:
    return "JSON lines with a prompt each" if path.suffix == ".jsonl" else "text in UTF-8"


def _decoding(options: argparse.Namespace) -> Decoding:
    """The decoding that the options select. Raises ConfigError for options that contradict each other."""
    if options.interactive and options.beam is not None:
        raise ConfigError("--interactive shows text as it comes, and a beam has it at the end: leave --beam out")
    if options.interactive and (options.samples or 1) > 1:
        raise ConfigError("--interactive shows one text of each prompt: leave --samples out")
    return decoding(options, options.seed, options.samples or 1)


def _refuse_decoding(options: argparse.Namespace, family: str) -> None:
    given = [name for name in _HOW if getattr(options, name)]
    if given:
        raise ConfigError(
            f"a {family} model does not continue text: it fills each [MASK] of a prompt with the most probable piece; "
            f"leave {flags(given)} out"
        )
