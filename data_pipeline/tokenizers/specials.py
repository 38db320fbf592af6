"""The special ids that an objective needs: the tokenizer's own if it has them, otherwise ids after its vocabulary.

So any dataset works with any objective, even if its tokenizer has only an end of text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.token_boundaries import TokenBoundaries

WritingRule = Literal["unicode", "ascii"]
"""Rules by which words and sentences are found: by Unicode's properties (`writing/boundaries.py`), or words behind
white space and sentences at . ! ?, as once."""
Role = Literal["pad", "cls", "sep", "mask"]

_NAMES: dict[Role, tuple[str, str]] = {
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
"""Names of each special token in BERT's and in other vocabularies."""
_OWN: dict[Role, str] = {"cls": "<cls>", "sep": "<sep>"}
"""Names in vocabularies that have <s> and </s> for another use (XLNet)."""
_ABSENT = -1


@dataclass(frozen=True)
class SpecialTokenNeeds:
    """The special tokens that an objective needs."""

    roles: tuple[Role, ...] = ("pad",)
    """Roles that need an id; missing ones are appended in this order."""
    sentinels: int = 0
    sentinel_ids: Literal["appended", "last"] = "appended"
    """Ids of sentinels that the tokenizer lacks: appended to its vocabulary, or its last ids, which may also occur in
    text (ByT5)."""
    start: Literal["pad", "end"] = "pad"
    """The id that a decoder reads first."""
    end: Literal["</s>", "end_of_text"] = "</s>"
    """The last id of an input or target: </s> if the tokenizer has it, or the end of documents."""


@dataclass(frozen=True, kw_only=True)
class Specials:
    """Ids by role; -1 for a role that the objective does not need."""

    pad: int
    cls: int
    """First in an encoder's input (BERT, RoBERTa, BART)."""
    sep: int
    """After each segment."""
    mask: int
    start: int
    """First that a decoder reads."""
    end: int
    """Last of an input or target: see `SpecialTokenNeeds.end`."""
    sentinels: tuple[int, ...]
    """Sentinel 0 first; it is the very last id where they are appended, as in T5, or the tokenizer's last."""
    vocabulary: int
    """Number of ids: the tokenizer's and the appended ones."""


def specials(tokenizer: Tokenizer, needs: SpecialTokenNeeds) -> Specials:
    """The special ids for these `needs` with `tokenizer`."""
    vocabulary = tokenizer.vocabulary_size
    ids = dict.fromkeys(_NAMES, _ABSENT)
    for role in needs.roles:
        known = [_OWN[role], *_NAMES[role]] if role in _OWN else _NAMES[role]
        existing = next((i for i in map(tokenizer.id_of, known) if i is not None), None)
        ids[role], vocabulary = (vocabulary, vocabulary + 1) if existing is None else (existing, vocabulary)
    sentinels = {number: tokenizer.id_of(f"<extra_id_{number}>") for number in range(needs.sentinels)}
    if needs.sentinel_ids == "last":
        if needs.sentinels >= tokenizer.vocabulary_size:
            raise DataError(
                f"objective.sentinels={needs.sentinels} are to be the tokenizer's last ids, of which it has "
                f"{tokenizer.vocabulary_size}: use fewer."
            )
        sentinels = {number: tokenizer.vocabulary_size - 1 - number for number in range(needs.sentinels)}
    for number in reversed(range(needs.sentinels)):
        if sentinels[number] is None:
            sentinels[number], vocabulary = vocabulary, vocabulary + 1
    own = tokenizer.id_of("</s>")
    end = tokenizer.end_of_text if own is None or needs.end == "end_of_text" else own
    return Specials(
        **ids,
        start=end if needs.start == "end" else ids["pad"],
        end=end,
        sentinels=tuple(index for index in sentinels.values() if index is not None),
        vocabulary=vocabulary,
    )


def names(tokenizer: Tokenizer, specials: Specials) -> dict[int, str]:
    """Names of the ids of `specials` that `tokenizer` lacks, in ascending order of ids."""
    roles: dict[Role, int] = {"pad": specials.pad, "cls": specials.cls, "sep": specials.sep, "mask": specials.mask}
    appended = {index: _NAMES[role][1] for role, index in roles.items() if index >= tokenizer.vocabulary_size}
    sentinels = {index: f"<extra_id_{number}>" for number, index in enumerate(specials.sentinels)}
    return dict(sorted((appended | {i: n for i, n in sentinels.items() if i >= tokenizer.vocabulary_size}).items()))


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Properties of ids that recipes need."""

    specials: Specials
    tokenizer: str
    """The tokenizer's identity."""
    end_of_text: int
    is_special: NDArray[np.bool_]
    """[vocabulary] like the next two, indexed by id, appended ids included."""
    starts_word: NDArray[np.bool_]
    ends_sentence: NDArray[np.bool_]
    ordinary: NDArray[np.int64]
    """The ids that are not special, ascending."""
    boundaries: TokenBoundaries | None = None
    """Where words begin and sentences end by Unicode's properties; None: by `starts_word` and `ends_sentence`."""

    @cached_property
    def _ends_word(self) -> NDArray[np.bool_]:
        """[vocabulary] whether whatever follows the id begins a word: it ends a sentence, or is special."""
        return self.is_special | self.ends_sentence

    def word_begins(self, row: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] whether a word begins with each id of a row [n]."""
        if self.boundaries is not None:
            return self.boundaries.begins_word(row)
        begins: NDArray[np.bool_] = self.starts_word[row]
        begins[1:] |= self._ends_word[row[:-1]]
        return begins

    def sentence_ends(self, row: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] whether a sentence ends with each id of a row [n]."""
        found: NDArray[np.bool_] = self.ends_sentence[row]
        return found if self.boundaries is None else self.boundaries.ends_sentence(row)

    @classmethod
    def of(cls, tokenizer: Tokenizer, needs: SpecialTokenNeeds, boundaries: WritingRule | None = None) -> Vocabulary:
        """The vocabulary of `tokenizer` for an objective with these needs, and with boundaries of words and sentences
        by this rule (None: "ascii")."""
        ids = specials(tokenizer, needs)
        pieces = None if boundaries != "unicode" else tokenizer.piece_bytes()
        if pieces is not None and len(pieces) < ids.vocabulary:
            pieces = [*pieces, *[b""] * (ids.vocabulary - len(pieces))]
        appended = (0, ids.vocabulary - tokenizer.vocabulary_size)
        is_special = np.pad(tokenizer.is_special(), appended, constant_values=True)
        return cls(
            specials=ids,
            tokenizer=tokenizer.identity,
            end_of_text=tokenizer.end_of_text,
            is_special=is_special,
            starts_word=np.pad(tokenizer.starts_word(), appended, constant_values=True),
            ends_sentence=np.pad(tokenizer.ends_sentence(), appended, constant_values=False),
            ordinary=np.flatnonzero(~is_special),
            boundaries=None if pieces is None else TokenBoundaries(pieces),
        )
