"""Masked encoders: a target's pseudo-log-likelihood (Salazar et al. 2020, arXiv 1910.14659), the sum of the log
probabilities of its tokens, each masked alone, with everything before and after it in sight. It is no probability of
the text, and compares only with another of the same model."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from data_pipeline.recipes.base import pad_rows
from data_pipeline.tokenizers.base import Tokenizer
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import Decoding
from pretrain.evaluate.decoding.prompts import Prompts
from pretrain.evaluate.scorers.base import AnswerTokens, Pair, encode_pair
from pretrain.evaluate.scorers.batches import NOBODY, equally_often, tokens_at_a_time

_LENGTH_MULTIPLE = 16  # of row lengths: tensor and context ranks can share a sequence


class PseudoScorer:
    """See `base.Scorer`. A target is greedy if each of its tokens is the most probable where it is masked."""

    name = "pseudo-log-likelihood: log probabilities of the target's tokens, each masked alone"
    generates, rolls, conditional = False, False, True

    def __init__(self, config: RunConfig, engine: Engine, tokenizer: Tokenizer, tokens: int | None = None) -> None:
        self.tokenizer, self.length = tokenizer, config.model.sequence_length
        self._engine, self._tokens, self._prompts = engine, tokens or tokens_at_a_time(), Prompts(config, tokenizer)
        self._around = len(self._prompts.closed([]))

    def pair(self, context: str, target: str) -> Pair:
        """See `base.Scorer`."""
        context_ids, target_ids = encode_pair(self.tokenizer, context, target)
        return context_ids if context.strip() else [], target_ids

    def fits(self, pair: Pair, answer_tokens: int) -> bool:
        """See `base.Scorer`."""
        return len(pair[0]) + len(pair[1]) + self._around <= self.length

    def answerable(self, target_tokens: int) -> bool:
        """See `base.Scorer`."""
        return target_tokens + self._around <= self.length

    def score(self, pairs: Sequence[Pair], owners: Sequence[int] | None = None) -> NDArray[np.float64]:
        """See `base.Scorer`."""
        rows: list[tuple[int, list[int], int]] = []  # (pair, ids, the one that is masked)
        for number, (context, target) in enumerate(pairs):
            kept = context[max(0, len(context) + len(target) + self._around - self.length) :]
            ids = self._prompts.closed([*kept, *target])
            first = len(ids) - self._after() - len(target)
            rows += [(number, ids, place) for place in range(first, first + len(target))]
        scored = np.zeros((len(pairs), 2))
        scored[:, 1] = 1
        for batch in self._batches(rows):
            log_probability, greedy = self._masked([(ids, place) for _, ids, place in batch])
            for row, (number, _, _) in enumerate(batch):
                if number != NOBODY:
                    scored[number, 0] += log_probability[row]
                    scored[number, 1] *= greedy[row]
        return scored

    def texts(
        self, contexts: Sequence[Sequence[int]], longest: int, decoding: Decoding, stops: Sequence[str]
    ) -> list[AnswerTokens]:
        """See `base.Scorer`: an encoder makes no text."""
        raise ConfigError("a masked encoder makes no text")

    def _batches(self, rows: list[tuple[int, list[int], int]]) -> list[list[tuple[int, list[int], int]]]:
        """Rows of like length together, as many as make `tokens` positions."""
        batches: list[list[tuple[int, list[int], int]]] = []
        for row in sorted(rows, key=lambda row: -len(row[1])):
            if not batches or (len(batches[-1]) + 1) * len(batches[-1][0][1]) > self._tokens:
                batches.append([])
            batches[-1].append(row)
        return equally_often(self._engine, batches, [(NOBODY, self._prompts.closed([self._prompts.specials.mask]), 0)])

    def _masked(self, rows: list[tuple[list[int], int]]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """[rows] of each the log probability of the id at the place, which is masked, and whether it is the most
        probable there."""
        width = min(self.length, -(-max(len(ids) for ids, _ in rows) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE)
        labels, shown = pad_rows([np.array(ids) for ids, _ in rows], width, self._prompts.specials.pad)
        places = np.array([place for _, place in rows])
        tokens, each = labels.copy(), np.arange(len(rows))
        tokens[each, places] = self._prompts.specials.mask
        loss_mask = np.zeros(labels.shape, np.float32)
        loss_mask[each, places] = 1
        scores = self._engine.score(Rows(tokens, labels, loss_mask, attention_mask=shown))
        return scores.log_probability[each, places].astype(np.float64), scores.greedy[each, places]

    def _after(self) -> int:
        """Ids that stand behind a text."""
        return self._around - (self._prompts.specials.cls >= 0)
