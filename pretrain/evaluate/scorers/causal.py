"""Models that continue a text: a target's probability is that of its tokens, each after all before it."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from data_pipeline.tokenizers.base import Tokenizer
from pretrain.engine.base import Engine
from pretrain.evaluate.decoding.base import DecodeRequest, Decoding
from pretrain.evaluate.decoding.decode import decode_mine
from pretrain.evaluate.scorers.base import AnswerTokens, Pair, encode_pair, stops_at
from pretrain.evaluate.scorers.batches import (
    Group,
    TokenScores,
    alone,
    at_once,
    batches,
    groups,
    prefill_and_score,
    rectangle,
    scored,
    tokens_at_a_time,
)

_LENGTH_MULTIPLE = 16  # row lengths: few shapes, and tensor and context ranks can share a sequence


class CausalScorer:
    """See `base.Scorer`."""

    name = "log probability of the target's tokens after the context"
    generates, rolls, conditional = True, True, True

    def __init__(self, engine: Engine, tokenizer: Tokenizer, length: int, tokens: int | None = None) -> None:
        """`length`: positions of the model; `tokens`: of rows scored at a time; None: what suits the device."""
        self.tokenizer, self.length = tokenizer, length
        self._engine, self._tokens = engine, tokens or tokens_at_a_time()

    def pair(self, context: str, target: str) -> Pair:
        """See `base.Scorer`."""
        return encode_pair(self.tokenizer, context, target)

    def fits(self, pair: Pair, answer_tokens: int) -> bool:
        """See `base.Scorer`."""
        return len(pair[0]) + max(answer_tokens, len(pair[1]) - 1) <= self.length

    def answerable(self, target_tokens: int) -> bool:
        """See `base.Scorer`."""
        return target_tokens <= self.length

    def score(self, pairs: Sequence[Pair], owners: Sequence[int] | None = None) -> NDArray[np.float64]:
        """See `base.Scorer`."""
        grouped = groups(pairs, owners or range(len(pairs)), self.length)
        if not self._engine.decodes:
            return self._scored(len(pairs), grouped, self._without_cache)
        shared = [group for group in grouped if len(group.ends) > 1]
        by_itself = self._scored(len(pairs), alone(grouped), partial(at_once, self._engine))
        return by_itself + self._scored(len(pairs), shared, partial(prefill_and_score, self._engine))

    def texts(
        self, contexts: Sequence[Sequence[int]], longest: int, decoding: Decoding, stops: Sequence[str]
    ) -> list[AnswerTokens]:
        """See `base.Scorer`."""
        cut = [list(ids)[-(self.length - longest) :] for ids in contexts]
        requests = [DecodeRequest(ids[:-1], ids[-1], longest, str(ids)) for ids in cut]
        decoded = decode_mine(self._engine, requests, decoding, stops_at(self.tokenizer, stops))
        return [AnswerTokens(texts[0].tokens, texts[0].ended == "stop") for texts in decoded]

    def _scored(
        self, pairs: int, grouped: Sequence[Group], score_batch: Callable[[Sequence[Group]], TokenScores]
    ) -> NDArray[np.float64]:
        """[pairs, 2] of those in the groups, and zeros for others."""
        return scored(self._engine, pairs, batches(grouped, self.length, self._tokens), score_batch)

    def _without_cache(self, batch: Sequence[Group]) -> TokenScores:
        """Scores a batch in full rows, for layouts that cannot reuse the keys and values of a shared context."""
        rows = [[*group.begins, *end] for group in batch for end in group.ends]
        begins = [len(group.begins) for group in batch for _ in group.ends]
        width = min(self.length, -(-(max(map(len, rows)) - 1) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE)
        tokens, labels = np.zeros((2, len(rows), width), np.int64)
        for number, row in enumerate(rows):
            tokens[number, : len(row) - 1], labels[number, : len(row) - 1] = row[:-1], row[1:]
        scores = self._engine.score(Rows.of(tokens, labels))
        _, shape, _ = rectangle(batch)
        log_probability, greedy = np.zeros(shape.shape, np.float32), np.zeros(shape.shape, np.bool_)
        for number, (row, begin) in enumerate(zip(rows, begins, strict=True)):
            length = len(row) - 1 - begin
            log_probability[number, :length] = scores.log_probability[number, begin : begin + length]
            greedy[number, :length] = scores.greedy[number, begin : begin + length]
        return log_probability, greedy
