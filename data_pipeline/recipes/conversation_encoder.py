"""The tokens of conversations, and which of them count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_pipeline.recipes.base import Ids
from data_pipeline.recipes.chat_template import ChatTemplate, TurnPart
from data_pipeline.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class Conversation:
    """The tokens of a conversation."""

    ids: Ids
    counts: NDArray[np.bool_]
    """[tokens] whether the loss of each counts."""
    offsets: NDArray[np.int64] | None = None
    """[tokens, 2] the characters that each is of; None: they are not known."""

    def is_same(self, other: Conversation) -> bool:
        """Whether the other one is the same for a model."""
        return np.array_equal(self.ids, other.ids) and np.array_equal(self.counts, other.counts)


@dataclass(frozen=True)
class ConversationEncoder:
    """Encodes what a template rendered, or prompts and their responses as they are."""

    tokenizer: Tokenizer
    template: ChatTemplate | None

    def encode(self, conversations: Sequence[list[TurnPart]], threads: int | None) -> list[Conversation]:
        """The tokens of each conversation, on `threads` (None: one per core)."""
        if self.template is None:
            return self.encode_in_parts(conversations, threads)
        texts = ["".join(piece.text for piece in pieces) for pieces in conversations]
        encoded = self.template.encode(texts, threads)
        return [
            Conversation(ids, _counted(pieces, offsets), offsets)
            for pieces, (ids, offsets) in zip(conversations, encoded, strict=True)
        ]

    def encode_in_parts(self, conversations: Sequence[list[TurnPart]], threads: int | None) -> list[Conversation]:
        """The tokens of conversations, each part of which, and all between two special pieces, is encoded as a text
        of its own. Once those of a template were, too."""
        parts: list[list[tuple[str | int, bool]]] = []
        for pieces in conversations:
            if self.template is None:
                parts.append([(piece.text, piece.counts) for piece in pieces])
            else:
                parts.append([(part, piece.counts) for piece in pieces for part in self.template.split(piece.text)])
        texts = [part for one in parts for part, _ in one if isinstance(part, str)]
        encoded = iter(self.tokenizer.encode_batch(texts, threads=threads))
        made = []
        for one in parts:
            ids, counts = [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
            if self.template is None and self.tokenizer.begin_of_text is not None:
                one = [(self.tokenizer.begin_of_text, False), *one]
            if self.template is None:
                one = [*one, (self.tokenizer.end_of_text, True)]
            for part, counted in one:
                ids.append(np.array([part], np.int64) if isinstance(part, int) else next(encoded).astype(np.int64))
                counts.append(np.full(len(ids[-1]), counted))
            made.append(Conversation(np.concatenate(ids), np.concatenate(counts)))
        return made

    def encode_question(self, text: str) -> Ids:
        """The tokens of all before a response."""
        if self.template is not None:
            return self.template.encode([text])[0][0]
        return np.array(self.tokenizer.opened(self.tokenizer.encode(text)), np.int64)


def _counted(pieces: Sequence[TurnPart], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[tokens] whether any character of a token is of a part that counts."""
    sizes = [len(piece.text) for piece in pieces]
    before = np.concatenate([[0], np.cumsum(np.repeat([piece.counts for piece in pieces], sizes), dtype=np.int64)])
    begin, end = offsets.T
    counted: NDArray[np.bool_] = before[np.minimum(np.maximum(end, begin + 1), len(before) - 1)] > before[begin]
    return counted
