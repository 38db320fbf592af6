"""Requests to decoding and its results: texts of token ids, for any model that has a decoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class DecodeRequest:
    """One prompt, as the engine is to read it."""

    reads: Sequence[int]
    """ids read first: an encoder's input, a prefix, or all but the last token of a text to continue"""
    start: int
    """first id that the decoder reads before it generates: its start token, or the last token of a text to continue"""
    longest: int
    """maximum number of new tokens"""
    stream: str
    """name of the random numbers that it is sampled with: requests of the same name, alike, give the same texts"""


@dataclass(frozen=True)
class Sampling:
    """Token after token, each drawn from the model's distribution; at temperature 0 the most probable (greedy)."""

    temperature: float = 0.0
    """number that log probabilities are divided by"""
    top_k: int | None = None
    """draw among so many tokens, the most probable"""
    top_p: float | None = None
    """then among the fewest that have this much of what is left of the probability (nucleus sampling: Holtzman et al.
    2019, arXiv 1904.09751)"""
    seed: int = 0
    texts: int = 1
    """drawn for each request, each with random numbers of its own"""


@dataclass(frozen=True)
class Beam:
    """The most probable text, as far as so many hypotheses at a time find it; see `beam.py`."""

    width: int
    penalty: float = 0.6
    """length penalty; 0: none"""
    texts: int = 1
    """found of each request, the best first; at most `width`"""


Decoding = Sampling | Beam
"""Methods of text generation."""
GREEDY = Sampling()

Ended = Literal["stop", "longest", "interrupted"]
"""Why generation ended: at an end of text or a stop string, at the requested number of tokens, or by an interrupt."""


@dataclass(frozen=True)
class Stops:
    """Conditions that end a text."""

    ids: frozenset[int] = frozenset()
    """tokens, which are not part of it"""
    text: Callable[[Sequence[int]], bool] | None = None
    """whether the tokens of a text hold a stop string that ends with the last of them"""

    def end(self, tokens: Sequence[int]) -> bool:
        """Whether the last of `tokens` ends a text."""
        return tokens[-1] in self.ids or (self.text is not None and self.text(tokens))


@dataclass(frozen=True)
class Generated:
    """One text."""

    tokens: list[int]
    """without an end; up to the last token of a stop string"""
    log_probability: float
    """nats, of all tokens and the end, by the model itself: before temperature, and whatever was left out of a draw"""
    ended: Ended


Watch = Callable[[Sequence[Sequence[int]]], bool]
"""Called with the tokens of all unfinished texts after each new token; returns whether to continue."""
