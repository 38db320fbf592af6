"""Models that answer an input with a target: encoder-decoders, and decoders with a prefix. Text in, text out, as T5's:
the input is the context, the target the answer.

A model that was trained to fill gaps (it has sentinels) fills a gap at the context's end: its answer follows the gap's
sentinel.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from data_pipeline.tokenizers.base import Tokenizer
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import DecodeRequest, Decoding, Stops
from pretrain.evaluate.decoding.decode import decode_mine
from pretrain.evaluate.decoding.prompts import Prompts
from pretrain.evaluate.scorers.base import AnswerTokens, Pair, stops_at
from pretrain.evaluate.scorers.batches import (
    Group,
    batches,
    prefill_and_score,
    scored,
    tokens_at_a_time,
)

_ANY_LENGTH = 1 << 30  # of a row: input and target each have a length of their own, or positions are relative


class TargetScorer:
    """See `base.Scorer`."""

    generates, rolls, conditional = True, False, True

    def __init__(self, config: RunConfig, engine: Engine, tokenizer: Tokenizer, tokens: int | None = None) -> None:
        if not engine.decodes:
            raise ConfigError(
                "targets are scored with parallel.virtual=1 and parallel.context=1, which change no score"
            )
        self.tokenizer, self.length = tokenizer, config.model.sequence_length
        self._engine, self._model, self._tokens = engine, config.model, tokens or tokens_at_a_time()
        self._prompts = Prompts(config, tokenizer)
        self._specials = self._prompts.specials
        self._gap = list(self._specials.sentinels[:1])
        self.name = f"log probability of the target's tokens{' in a gap' if self._gap else ''} after the input"

    def pair(self, context: str, target: str) -> Pair:
        """See `base.Scorer`. The target has no end."""
        return self._prompts.encode(context), self.tokenizer.encode(target)

    def fits(self, pair: Pair, answer_tokens: int) -> bool:
        """See `base.Scorer`."""
        context, target = pair
        return len(self._reads(context)) <= self._room(max(len(target), answer_tokens)) and self.answerable(len(target))

    def answerable(self, target_tokens: int) -> bool:
        """See `base.Scorer`."""
        length = target_tokens + len(self._gap)
        return length <= self._model.label_length if self._model.is_encoder_decoder else self._room(target_tokens) > 0

    def score(self, pairs: Sequence[Pair], owners: Sequence[int] | None = None) -> NDArray[np.float64]:
        """See `base.Scorer`."""
        work = batches(self._groups(pairs, owners or range(len(pairs))), _ANY_LENGTH, self._tokens)
        return scored(self._engine, len(pairs), work, partial(prefill_and_score, self._engine))

    def texts(
        self, contexts: Sequence[Sequence[int]], longest: int, decoding: Decoding, stops: Sequence[str]
    ) -> list[AnswerTokens]:
        """See `base.Scorer`."""
        needed = longest + 2 * len(self._gap)  # the gap's sentinel, and the next one
        room = min(needed, self._model.label_length) if self._model.is_encoder_decoder else needed
        requests = [DecodeRequest(self._cut(ids, longest), self._specials.start, room, str(ids)) for ids in contexts]
        plain = stops_at(self.tokenizer, stops)
        ends = Stops(plain.ids | {self._specials.end, *self._specials.sentinels[1:2]}, plain.text)
        decoded = decode_mine(self._engine, requests, decoding, ends)
        known = self.tokenizer.vocabulary_size
        answers = []
        for texts in decoded:
            tokens = [token for token in texts[0].tokens if token < known]
            answers.append(AnswerTokens(tokens[:longest], texts[0].ended == "stop" and len(tokens) <= longest))
        return answers

    def _groups(self, pairs: Sequence[Pair], owners: Sequence[int]) -> list[Group]:
        """Pairs of one owner with the same context read it once."""
        grouped: list[Group] = []
        last: tuple[int, Sequence[int]] | None = None
        for number, ((context, target), owner) in enumerate(zip(pairs, owners, strict=True)):
            end = [self._specials.start, *self._gap, *target]
            if last == (owner, context):
                group = grouped[-1]
                group.numbers.append(number)
                group.ends.append(end)
                group.targets.append(len(target))
            else:
                grouped.append(Group([number], self._cut(context, len(target)), [end], [len(target)]))
            last = owner, context
        return grouped

    def _reads(self, context: Sequence[int]) -> list[int]:
        return self._prompts.closed([*context, *self._gap])

    def _cut(self, context: Sequence[int], target_tokens: int) -> list[int]:
        """The part that is read of a context that may be too long: its end."""
        over = len(self._reads(context)) - self._room(target_tokens)
        return self._reads(context[max(0, over) :])

    def _room(self, target_tokens: int) -> int:
        """Positions that an input may have before such a target."""
        if self._model.is_encoder_decoder:
            return self.length
        return self.length - target_tokens - 2 * len(self._gap) - 1
