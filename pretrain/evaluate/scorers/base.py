"""The interface between tasks and models: what tasks need from a model of any kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from data_pipeline.tokenizers.base import Tokenizer
from pretrain.evaluate.decoding.base import Decoding, Stops
from pretrain.evaluate.decoding.stream import stop_test, until

Pair = tuple[Sequence[int], Sequence[int]]
"""(context ids, target ids), neither empty"""


@dataclass(frozen=True)
class AnswerTokens:
    """Tokens that a model generated after a context."""

    tokens: list[int]
    ended: bool
    """whether it came to an end of text or a stop, rather than to the most tokens that it may generate"""


class Scorer(Protocol):
    """One kind of model. Its methods that score are collective within one replica of it, or over all ranks while data
    ranks share the weights: data ranks call them equally often."""

    name: str
    """meaning of a score, which the report states"""
    tokenizer: Tokenizer
    length: int
    """positions of the model"""
    generates: bool
    """it can make text"""
    rolls: bool
    """a text has a probability by itself, each token after all before it"""
    conditional: bool
    """a target has a score after its context; else scores are of the text of both"""

    def pair(self, context: str, target: str) -> Pair:
        """The ids of both, as the model reads them one after the other."""

    def fits(self, pair: Pair, answer_tokens: int) -> bool:
        """Whether the whole context is read, with room for the target or for `answer_tokens` generated ones."""

    def answerable(self, target_tokens: int) -> bool:
        """Whether the model can score or generate so many tokens, after whatever is left of a context."""

    def score(self, pairs: Sequence[Pair], owners: Sequence[int] | None = None) -> NDArray[np.float64]:
        """[pairs, 2]: log-probability of the target given the context, nats, and 1 where each of its tokens is the
        most probable one (lm-eval's `is_greedy`). A context that doesn't fit is cut at its beginning. Pairs of one
        owner (a document's choices), which follow each other, have their common beginning read once; None: each is its
        own."""

    def texts(
        self, contexts: Sequence[Sequence[int]], longest: int, decoding: Decoding, stops: Sequence[str]
    ) -> list[AnswerTokens]:
        """Tokens that the model generates after each of the contexts of pairs: at most `longest`, up to an end of text
        or to the first of `stops`, which may still be at the end."""


def encode_pair(tokenizer: Tokenizer, context: str, target: str) -> Pair:
    """(context ids, target ids), split as lm-eval splits: the text is encoded as a whole and cut at the length of the
    context's own encoding; spaces at the context's end belong to the target."""
    stripped = context.rstrip()
    context, target = stripped, context[len(stripped) :] + target
    if not context:
        return [tokenizer.before_text], tokenizer.encode(target)
    context_ids, whole_ids = tokenizer.encode(context), tokenizer.encode(context + target)
    cut = min(len(context_ids), len(whole_ids) - 1)  # a target that became one token with the context's end is scored
    return tokenizer.opened(context_ids[:cut]), whole_ids[cut:]


def answer_text(tokenizer: Tokenizer, answer: Sequence[int], stops: Sequence[str]) -> str:
    """The text of generated tokens up to an end of text or the first of `stops`; ids that no text has are left out."""
    end = list(answer).index(tokenizer.end_of_text) if tokenizer.end_of_text in answer else len(answer)
    return until(_decode(tokenizer, answer[:end]), stops)


def stops_at(tokenizer: Tokenizer, strings: Sequence[str]) -> Stops:
    """An end of text, or the first of `strings`."""
    ends = {tokenizer.end_of_text, *(ids[0] for ids in map(tokenizer.encode, strings) if len(ids) == 1)}
    return Stops(frozenset(ends), stop_test(partial(_decode, tokenizer), strings))


def _decode(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    return tokenizer.decode([token for token in tokens if token < tokenizer.vocabulary_size])
