"""Text <-> token ids: the interface of every kind of tokenizer. `load.py` reads and trains them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError

END_OF_TEXT = "<|endoftext|>"
NO_END = -1
"""`Tokenizer.end_of_text` of a file that names no end, which is given one before it is used."""


def split_at(pieces: Collection[str], text: str) -> list[str]:
    """A text, cut before and after each of these pieces, of which the longest is found first. Without empty parts."""
    if not pieces:
        return [text] if text else []
    names = "|".join(map(re.escape, sorted(pieces, key=len, reverse=True)))
    return [part for part in re.split(f"({names})", text) if part]


class Tokenizer(ABC):
    """Text <-> token ids. A special piece is one that no text encodes to."""

    file_name: ClassVar[str]
    """Name of the file in a dataset's directory."""
    spaces_begin_words: ClassVar[bool] = True
    """Whether a space belongs to the first piece of the word after it, or is a token of its own."""
    library: str
    library_version: str
    vocabulary_size: int
    end_of_text: int
    """The id after each document."""
    begin_of_text: int | None = None
    """The id before each text, for models that were trained with one (Gemma's <bos>); None: no such id."""
    identity: str
    """Digest of everything that ids depend on."""

    @abstractmethod
    def encode_batch(self, texts: list[str], threads: int | None = None) -> list[NDArray[np.int32]]:
        """Token ids of each text, without an end of text, on `threads` (default: one per core)."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; bytes that make no character (a window may cut one in two) show as U+FFFD."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write the file that `load_tokenizer` reads."""

    @abstractmethod
    def id_of(self, piece: str) -> int | None:
        """The id of a special piece such as "[MASK]"; None when the tokenizer has none of this name."""

    @abstractmethod
    def texts(self) -> list[str]:
        """[vocabulary] the text of each piece, with a space before what begins a word; "" of special ones."""

    @abstractmethod
    def to_json(self) -> str:
        """A tokenizer.json with the same ids for any text, which adds none to them, and whose special tokens no text
        encodes to while `encode_special_tokens` is set. Raises DataError for what that format has no word for."""

    def piece_bytes(self) -> Sequence[bytes]:
        """[vocabulary] the text of each piece in UTF-8, of which a piece may be a part of a character; see `texts`."""
        return [text.encode("utf-8", "surrogatepass") for text in self.texts()]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without an end of text."""
        ids: list[int] = self.encode_batch([text], threads=1)[0].tolist()
        return ids

    def encode_with_offsets(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(`encode` of a text, [ids, 2] the characters of the text that each id is made of: first, end). Ids that share
        a character, as its bytes do, each have all of it. Raises DataError if the kind of tokenizer can't tell."""
        raise DataError(
            f"A tokenizer of the kind {self.library} does not say which characters its ids are made of, which an "
            "objective of spans needs; use one of another kind."
        )

    def encode_marked_batch(
        self, texts: list[str], threads: int | None = None
    ) -> list[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """`encode_with_offsets` of each text, in which special pieces are found by their names: texts that a chat
        template wrote, encoded as transformers does."""
        return [self._encode_marked(text) for text in texts]

    def _encode_marked(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        special = self.special_pieces()
        ids, offsets, begin = [np.empty(0, np.int32)], [np.empty((0, 2), np.int64)], 0
        for part in split_at(special, text):
            end = begin + len(part)
            if part in special:
                found, spans = np.array([special[part]], np.int32), np.array([[0, len(part)]], np.int64)
            else:
                found, spans = self._encode_between(part, is_first=not begin)
            ids.append(found)
            offsets.append(spans + begin)
            begin = end
        return np.concatenate(ids), np.concatenate(offsets)

    def _encode_between(self, text: str, is_first: bool) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """`encode_with_offsets` of what lies between special pieces; `is_first`: it begins the whole text."""
        return self.encode_with_offsets(text)

    def special_pieces(self) -> dict[str, int]:
        """The ids of the special pieces by name, as far as the file has them."""
        return {}

    @property
    def unknown(self) -> int | None:
        """The id of what no piece spells (BERT's [UNK]); None: the pieces spell any text."""
        return None

    def opened(self, ids: Sequence[int]) -> list[int]:
        """A text's ids, preceded by the begin of text if there is one."""
        return list(ids) if self.begin_of_text is None else [self.begin_of_text, *ids]

    @property
    def before_text(self) -> int:
        """The id that precedes the first token of a text: the begin of text, or the end of the previous text."""
        return self.end_of_text if self.begin_of_text is None else self.begin_of_text

    @staticmethod
    def _characters(text: bytes) -> NDArray[np.int64]:
        """[bytes] the character that each byte of a UTF-8 text is of."""
        return np.cumsum((np.frombuffer(text, np.uint8) & 0xC0) != 0x80, dtype=np.int64) - 1

    def is_special(self) -> NDArray[np.bool_]:
        """[vocabulary] whether a piece is special: no text encodes to it."""
        return np.array([not text for text in self.texts()], np.bool_)

    def starts_word(self) -> NDArray[np.bool_]:
        """[vocabulary] whether a piece begins a word by the rule "ascii": it starts with white space, or is special."""
        return np.array([not text or text[0].isspace() for text in self.texts()], np.bool_)

    def ends_sentence(self) -> NDArray[np.bool_]:
        """[vocabulary] whether a sentence ends with a piece by the rule "ascii": it ends in . ! or ? (ignoring white
        space) or contains a newline."""
        return np.array([text.rstrip().endswith((".", "!", "?")) or "\n" in text for text in self.texts()], np.bool_)
