"""How texts are made, as commands are told: `generate`, and `eval` of answers in text."""

import argparse

from pretrain.commands.arguments import Parser, count
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import Beam, Decoding, Sampling

DRAWS = ("temperature", "top_k", "top_p")
HOW = (*DRAWS, "beam", "penalty")


def add_decoding(parser: Parser, greedy: str) -> None:
    """`greedy` says when --temperature 0 holds."""
    parser.add_argument("--temperature", type=_at_least_zero, help=f"0: the most probable token each time{greedy}")
    parser.add_argument("--top-k", type=count, help="draw among the N most probable tokens")
    parser.add_argument("--top-p", type=_share, help="draw among the fewest tokens that have this probability")
    parser.add_argument("--beam", type=count, help="search with N hypotheses (1: greedy)")
    parser.add_argument("--penalty", type=_at_least_zero, help="of length, of a beam (default 0.6; 0: none)")


def decoding(options: argparse.Namespace, seed: int, samples: int = 1) -> Decoding:
    """Raises ConfigError for options that do nothing beside others."""
    draws = [name for name in DRAWS if getattr(options, name) is not None]
    if options.beam is not None:
        if draws:
            raise ConfigError(f"--beam searches for the most probable text, and {flags(draws)} draws: leave one out")
        if samples > options.beam:
            raise ConfigError(f"--beam {options.beam} has {options.beam} texts, fewer than --samples {samples}")
        return Beam(options.beam, 0.6 if options.penalty is None else options.penalty, samples)
    if options.penalty is not None:
        raise ConfigError("--penalty is a beam's: leave it out, or give --beam N")
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
