"""Decoding options of the commands that generate text: `generate`, and `eval` for tasks with generated answers."""

import argparse

from pretrain.commands.arguments import Parser, count
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import Beam, Decoding, Sampling

DRAWS = ("temperature", "top_k", "top_p")
HOW = (*DRAWS, "beam", "penalty")


def add_decoding(parser: Parser, default: str) -> None:
    """Adds the decoding options as a group, whose description is the `default`: how texts are decoded without them."""
    group = parser.add_argument_group("decoding", default)
    group.add_argument("--temperature", type=_at_least_zero, metavar="X", help="Sampling temperature; 0: greedy.")
    group.add_argument(
        "--top-k", type=count, metavar="N", help="Sample from the N most probable tokens (default: all)."
    )
    group.add_argument(
        "--top-p",
        type=_share,
        metavar="X",
        help="Nucleus sampling: sample from the fewest tokens whose probabilities add up to at least X (default: all).",
    )
    group.add_argument("--beam", type=count, metavar="N", help="Beam search of width N; 1: greedy.")
    add_penalty(group)


def add_penalty(parser: argparse._ActionsContainer, default: float | None = None) -> None:
    """Adds the length penalty of beam search."""
    parser.add_argument(
        "--penalty",
        type=_at_least_zero,
        default=default,
        metavar="X",
        help="Exponent of beam search's length penalty (default 0.6; 0: no penalty).",
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
