"""Decoding options of the commands that generate text: `generate`, and `eval` for tasks with generated answers."""

import argparse

from pretrain.commands.arguments import Parser, count
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import Beam, Decoding, Sampling

DRAWS = ("temperature", "top_k", "top_p")
HOW = (*DRAWS, "beam", "penalty")


def add_decoding(parser: Parser, greedy: str) -> None:
    """Adds the decoding options. `greedy` ends the help of --temperature: when greedy decoding is the default."""
    parser.add_argument("--temperature", type=_at_least_zero, help=f"Sampling temperature; 0: greedy decoding{greedy}.")
    parser.add_argument("--top-k", type=count, help="Sample from the N most probable tokens (default: all).")
    parser.add_argument(
        "--top-p", type=_share, help="Sample from the fewest tokens with this total probability (default: all)."
    )
    parser.add_argument("--beam", type=count, help="Beam search with N hypotheses (1: greedy decoding).")
    parser.add_argument(
        "--penalty", type=_at_least_zero, help="Length penalty of beam search (default 0.6; 0 turns it off)."
    )


def decoding(options: argparse.Namespace, seed: int, samples: int = 1) -> Decoding:
    """The decoding that the options select. Raises ConfigError for options that contradict each other."""
    draws = [name for name in DRAWS if getattr(options, name) is not None]
    if options.beam is not None:
        if draws:
            raise ConfigError(f"--beam searches for the most probable text, and {flags(draws)} draws: leave one out")
        if samples > options.beam:
            raise ConfigError(f"--beam {options.beam} has {options.beam} texts, fewer than --samples {samples}")
        return Beam(options.beam, 0.6 if options.penalty is None else options.penalty, samples)
    if options.penalty is not None:
        raise ConfigError("--penalty applies to beam search only: leave it out, or give --beam N")
    temperature = options.temperature
    if temperature is None:
        temperature = 1.0 if draws or samples > 1 else 0.0
    elif temperature == 0 and (samples > 1 or len(draws) > 1):
        idle = flags([*(name for name in DRAWS[1:] if name in draws), *(["samples"] if samples > 1 else [])])
        raise ConfigError(f"--temperature 0 takes the most probable token each time: leave {idle} out")
    return Sampling(temperature, options.top_k, options.top_p, seed, samples)


def flags(names: list[str]) -> str:
    """Options by the names of their values, as one types them."""
    return " and ".join(f"--{name.replace('_', '-')}" for name in names)


def _at_least_zero(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return number
