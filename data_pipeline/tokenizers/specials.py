"""The ids that an objective needs beside text: a tokenizer's own where it has them, else ids after its vocabulary.

So any dataset can be trained on with any objective, also one whose tokenizer knows nothing but an end of text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import Tokenizer

Role = Literal["pad", "cls", "sep", "mask"]

_NAMES: dict[Role, tuple[str, str]] = {
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
"""What a special is called in BERT's and in other vocabularies."""
_ABSENT = -1


@dataclass(frozen=True)
class SpecialTokenNeeds:
    """What an objective needs beside text."""

    roles: tuple[Role, ...] = ("pad",)
    """Those that lack are appended in this order."""
    sentinels: int = 0
    sentinel_ids: Literal["appended", "last"] = "appended"
    """Where the tokenizer has none: after its vocabulary, or its own last ids, which text may have, too (ByT5)."""
    start: Literal["pad", "end"] = "pad"
    """What a decoder reads first."""
    end: Literal["</s>", "end_of_text"] = "</s>"
    """The last of an input or target: </s> where the tokenizer has it, or what documents end with."""


@dataclass(frozen=True)
class Specials:
    """Ids by their role. A role that the objective has no use for is -1."""

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
    """Ids in all: the tokenizer's and those that are appended."""


def specials(tokenizer: Tokenizer, needs: SpecialTokenNeeds) -> Specials:
    """The ids that are needed, with `tokenizer`."""
    vocabulary = tokenizer.vocabulary_size
    ids = dict.fromkeys(_NAMES, _ABSENT)
    for role in needs.roles:
        found = next((i for i in map(tokenizer.id_of, _NAMES[role]) if i is not None), None)
        ids[role], vocabulary = (vocabulary, vocabulary + 1) if found is None else (found, vocabulary)
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
    """What to call the ids of `specials` that `tokenizer` lacks, ascending."""
    roles: dict[Role, int] = {"pad": specials.pad, "cls": specials.cls, "sep": specials.sep, "mask": specials.mask}
    found = {index: _NAMES[role][1] for role, index in roles.items() if index >= tokenizer.vocabulary_size}
    sentinels = {index: f"<extra_id_{number}>" for number, index in enumerate(specials.sentinels)}
    return dict(sorted((found | {i: n for i, n in sentinels.items() if i >= tokenizer.vocabulary_size}).items()))


@dataclass(frozen=True)
class Vocabulary:
    """What recipes know about ids."""

    specials: Specials
    tokenizer: str
    """The tokenizer's identity."""
    end_of_text: int
    is_special: NDArray[np.bool_]
    """[vocabulary] these, and the next two, by id; those that were appended included."""
    starts_word: NDArray[np.bool_]
    ends_sentence: NDArray[np.bool_]
    ordinary: NDArray[np.int64]
    """The ids that stand for text, ascending."""

    @cached_property
    def ends_word(self) -> NDArray[np.bool_]:
        """[vocabulary] whatever follows begins a word: after a sentence, or what is special."""
        return self.is_special | self.ends_sentence

    @classmethod
    def of(cls, tokenizer: Tokenizer, needs: SpecialTokenNeeds) -> Vocabulary:
        """What an objective with these needs sees of `tokenizer`."""
        ids = specials(tokenizer, needs)
        appended = (0, ids.vocabulary - tokenizer.vocabulary_size)
        is_special = np.pad(tokenizer.is_special(), appended, constant_values=True)
        return cls(
            ids,
            tokenizer.identity,
            tokenizer.end_of_text,
            is_special,
            np.pad(tokenizer.starts_word(), appended, constant_values=True),
            np.pad(tokenizer.ends_sentence(), appended, constant_values=False),
            np.flatnonzero(~is_special),
        )
