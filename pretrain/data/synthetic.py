"""Rows for a config without data: of the kind that its model reads, with padding, prefixes, segments and documents of
all lengths, and labels at as many places as its runs have them.

Each token follows from the one before it, nearly; what a target says follows from its input.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import RIGHT_CHOICE, SPAN_END, SPAN_START, WRONG_CHOICE, Batch, Cursor, Rows
from pretrain.config.run_config import RunConfig
from pretrain.config.task_head import TaskHeadShape

_SHORTEST = 0.5  # part of a row that is no padding
_LABELLED = 0.15  # part of an encoder's tokens that have a label
_TAGGED = 0.5  # of a tagger's: the first of each word
_NONE_IN, _NONE_AT = 8, 3  # of so many rows of an encoder the one that has no label


class SyntheticStream:
    """In place of data_pipeline's SampleStream."""

    def __init__(self, config: RunConfig) -> None:
        self._seed, self._model, self._objective = config.run.seed, config.model, config.objective
        self._length = config.sequence_length
        self._vocabulary = config.model.vocabulary or 0
        self._sources = len(config.data.sources)
        # Masking gives each row of a generator at least one label; without one it only fills a scored batch.
        self._has_unlabelled_rows = config.generator is None and not config.model.has_decoder

    def batch(self, start: int, count: int, data_rank: int, data_world: int) -> Batch:
        """See `SampleStream.batch`."""
        share = count // data_world
        mine = range(start + data_rank * share, start + (data_rank + 1) * share)
        randoms = [np.random.default_rng([self._seed, sample]) for sample in mine]
        head = self._model.task_head
        if head is None or head.kind == "detector":
            rows = self._rows(randoms)
            if self._has_unlabelled_rows and rows.attention_mask is not None:
                has_labels = np.array(mine) % _NONE_IN != _NONE_AT
                rows = replace(rows, loss_mask=rows.loss_mask * has_labels[:, None].astype(np.float32))
        else:
            rows = self._labelled(randoms, head)
        if self._model.memory_length:  # of lanes that have all been read as often
            rows = replace(rows, before=np.full(share, start // count * self._objective.advance(self._length)))
        if self._sources > 1:
            rows = replace(rows, source=np.array(mine, np.int64) % (2 * self._sources - 1) % self._sources)
        ids = np.stack([np.zeros(count), np.zeros(count), np.arange(start, start + count)], axis=1).astype(np.int64)
        return Batch(**vars(rows), sample_ids=ids, cursor=Cursor(start + count, "synthetic"))

    def _rows(self, randoms: list[np.random.Generator]) -> Rows:
        model, length = self._model, self._model.sequence_length
        if "documents" in self._objective.columns:
            return self._packed(randoms, length)
        if "order" in self._objective.columns:
            return self._ordered(randoms, length)
        spans = np.stack([self._span(random, length) for random in randoms])
        tokens, labels = spans[:, :-1].copy(), spans[:, 1:].copy()
        if self._objective.predicts_next:
            return Rows.of(tokens, labels)
        first = np.array([random.integers(int(length * _SHORTEST), length + 1) for random in randoms])[:, None]
        seen = np.arange(length) < first
        if model.picks_labels:
            return self._picked(randoms, tokens, seen)
        if not model.has_decoder:
            segments = (np.arange(length) * 3 >= first).astype(np.int64) if model.segments > 1 else None
            positions = None
            if "positions" in self._objective.columns:  # from 0 again in the second segment
                second = np.arange(length) * 3 >= first
                positions = np.arange(length) - second * second.argmax(axis=1)[:, None]
            has_question = "next_sentence" in self._objective.columns
            follows = np.array([random.integers(2) for random in randoms]) if has_question else None
            mask = _some(seen, _LABELLED, randoms)
            return Rows(
                tokens, labels, mask, attention_mask=seen, segments=segments, next_sentence=follows, positions=positions
            )
        if not model.has_encoder:
            return Rows(tokens, labels, 1 - seen.astype(np.float32), attention_mask=seen)
        if model.front_encoder is not None:  # inputs are in another vocabulary
            tokens %= model.source_model.vocab_size
        targets = np.stack([self._span(random, model.label_length) for random in randoms])
        labels, mask = targets[:, 1:].copy(), np.ones((len(randoms), model.label_length), np.float32)
        return Rows(tokens, labels, mask, decoder_tokens=targets[:, :-1].copy(), attention_mask=seen)

    def _labelled(self, randoms: list[np.random.Generator], head: TaskHeadShape) -> Rows:
        """Texts of all lengths with what `head` is to answer of their last tokens, or of each."""
        if self._objective.texts_per_row > 1:
            return self._side_by_side(randoms, head)
        model, length = self._model, self._length
        tokens = np.stack([self._span(random, length - 1) for random in randoms])
        sizes = np.array([random.integers(int(length * _SHORTEST), length + 1) for random in randoms])
        every, last, seen = np.arange(len(tokens)), sizes - 1, np.arange(length) < sizes[:, None]
        labels, mask, targets = np.zeros_like(tokens), np.zeros(tokens.shape, np.float32), None
        if self._objective.loss == "spans":
            begin = last - tokens[every, last] % 3
            labels[every, begin] |= SPAN_START
            labels[every, last] |= SPAN_END
            mask[every, begin] = 1
        else:
            labels = tokens % head.outputs
            mask[every, last] = 1
            if head.kind == "token":
                mask = _some(seen, _TAGGED, randoms)
            if self._objective.loss == "regression":
                targets = (tokens / self._vocabulary).astype(np.float32)
        shifted = np.concatenate([tokens[:, :1] * 0, tokens[:, :-1]], axis=1)
        return Rows(
            tokens,
            labels,
            mask,
            targets=targets,
            decoder_tokens=shifted if model.is_encoder_decoder else None,
            attention_mask=seen if model.has_encoder else None,
            segments=(np.arange(length) * 3 >= sizes[:, None]).astype(np.int64) if model.segments > 1 else None,
            next_tokens=_following(tokens, seen) if head.language_model else None,
        )

    def _side_by_side(self, randoms: list[np.random.Generator], head: TaskHeadShape) -> Rows:
        """Several texts in each row, with what `head` is to answer of their last tokens: of choices two or more which
        one is right, of others one answer for all of them."""
        rows, texts = len(randoms), self._objective.texts_per_row
        length, chooses = self._length // texts, self._objective.loss == "choice"
        tokens = np.stack([self._span(random, texts * length - 1) for random in randoms]).reshape(rows, texts, length)
        sizes = np.stack([random.integers(int(length * _SHORTEST), length + 1, texts) for random in randoms])
        counts = np.array([random.integers(2, texts + 1) for random in randoms])
        sizes = np.where(np.arange(texts) < counts[:, None], sizes, 0)
        seen = np.arange(length) < sizes[..., None]
        last = (np.arange(length) == sizes[..., None] - 1).reshape(rows, -1)
        first = (np.arange(texts) == 0).repeat(length)
        right = (np.arange(texts) == (tokens[:, 0, 0] % counts)[:, None]).repeat(length, axis=1)
        numbers = np.broadcast_to(np.arange(texts)[:, None], seen.shape)
        columns = {
            "documents": np.where(seen, numbers, -1),
            "positions": np.broadcast_to(np.arange(length), seen.shape),
            "segments": (np.arange(length) * 3 >= sizes[..., None]).astype(np.int64),
            "next_tokens": _following(tokens.reshape(-1, length), seen.reshape(-1, length)),
        }
        if self._model.segments < 2:
            del columns["segments"]
        if not head.language_model:
            del columns["next_tokens"]
        flat = tokens.reshape(rows, -1)
        labels = np.where(last, np.where(right, RIGHT_CHOICE, WRONG_CHOICE), 0) if chooses else flat % head.outputs
        return Rows(
            flat,
            labels,
            (last & (right if chooses else first)).astype(np.float32),
            targets=(flat / self._vocabulary).astype(np.float32) if self._objective.loss == "regression" else None,
            summed=None if chooses else last,
            **{name: values.reshape(rows, -1) for name, values in columns.items()},
        )

    def _ordered(self, randoms: list[np.random.Generator], length: int) -> Rows:
        """A text of three quarters of each row, and queries at some of its places, in a random order."""
        text = length - length // 4
        tokens = np.stack([np.pad(self._span(random, text - 1), (0, length - text)) for random in randoms])
        turns = np.stack([random.permutation(text) for random in randoms])
        predicted = turns >= 2 * text - length  # as many as there are queries
        places = np.stack([np.flatnonzero(row) for row in predicted])
        turns = 2 * np.where(predicted, turns + 1, 1)
        segments = (np.arange(text) * 3 >= 2 * text).astype(np.int64)[None].repeat(len(randoms), axis=0)

        def with_queries(values: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.concatenate([values, np.take_along_axis(values, places, axis=1)], axis=1)

        is_query = np.broadcast_to(np.arange(length) >= text, tokens.shape)
        return Rows(
            tokens,
            with_queries(tokens[:, :text]),
            is_query.astype(np.float32),
            segments=with_queries(segments),
            positions=with_queries(np.broadcast_to(np.arange(text), turns.shape)),
            order=with_queries(turns) - is_query,
        )

    def _picked(
        self, randoms: list[np.random.Generator], tokens: NDArray[np.int64], seen: NDArray[np.bool_]
    ) -> Rows:  # fmt: skip
        """Predictions at some places of each text, in a random order; fewer than there may be in some rows."""
        count, vocabulary = self._model.label_length, self._vocabulary
        places, mask = np.zeros((len(tokens), count), np.int64), np.zeros((len(tokens), count), np.float32)
        for row, random in enumerate(randoms):
            found = random.permutation(np.flatnonzero(seen[row]))[: random.integers(1, count + 1)]
            places[row, : len(found)] = found
            mask[row, : len(found)] = 1
        labels = np.take_along_axis(tokens, places, axis=1) % vocabulary
        rows = Rows(tokens, labels, mask, attention_mask=seen, label_positions=places)
        if "next_sentence" not in self._objective.columns:
            return rows
        segments = (np.arange(tokens.shape[1]) * 3 >= seen.sum(axis=1, keepdims=True)).astype(np.int64)
        follows = np.array([random.integers(2) for random in randoms])
        return replace(rows, segments=segments, next_sentence=follows)

    def _packed(self, randoms: list[np.random.Generator], length: int) -> Rows:
        """Three documents in each row, and padding."""
        shape = (len(randoms), length)
        tokens, labels, documents = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape, -1)
        for row, random in enumerate(randoms):
            ends = np.sort(random.choice(np.arange(1, length), 3, replace=False))  # the last one: of all
            for number, (begin, end) in enumerate(zip((0, *ends), ends, strict=False)):
                span = self._span(random, end - begin)
                tokens[row, begin:end], labels[row, begin:end] = span[:-1], span[1:]
                documents[row, begin:end] = number
        return Rows(tokens, labels, (documents >= 0).astype(np.float32), documents=documents)

    def _span(self, random: np.random.Generator, length: int) -> NDArray[np.int64]:
        steps = random.integers(1, 4, length + 1)
        return (random.integers(self._vocabulary) + np.cumsum(steps)) % self._vocabulary


def _following(tokens: NDArray[np.int64], seen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[rows, length] the token after each of a text; -1 from its last one on."""
    following = np.full_like(tokens, -1)
    following[:, :-1] = np.where(seen[:, 1:], tokens[:, 1:], -1)
    return following


def _some(seen: NDArray[np.bool_], part: float, randoms: list[np.random.Generator]) -> NDArray[np.float32]:
    """[rows, length] 1 at about `part` of what is seen of each row."""
    drawn = np.stack([random.random(seen.shape[1]) < part for random in randoms])
    found: NDArray[np.float32] = (seen & drawn).astype(np.float32)
    return found
