"""Text <-> token ids: what every kind of tokenizer answers. `load.py` reads and trains them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

END_OF_TEXT = "<|endoftext|>"


class Tokenizer(ABC):
    """Text <-> token ids. A special piece is one that no text encodes to."""

    file_name: ClassVar[str]
    """What the file is called in a dataset's directory."""
    library: ClassVar[str]
    library_version: str
    vocabulary_size: int
    end_of_text: int
    """The id after each document."""
    begin_of_text: int | None = None
    """The id before each text, where models were trained so (Gemma's <bos>); None: there is none."""
    identity: str
    """Digest of all that ids depend on."""

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

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without an end of text."""
        ids: list[int] = self.encode_batch([text], threads=1)[0].tolist()
        return ids

    def opened(self, ids: Sequence[int]) -> list[int]:
        """A text's ids, behind what is before each."""
        return list(ids) if self.begin_of_text is None else [self.begin_of_text, *ids]

    @property
    def before_text(self) -> int:
        """What the first token of a text follows: its begin, or the end of another."""
        return self.end_of_text if self.begin_of_text is None else self.begin_of_text

    def is_special(self) -> NDArray[np.bool_]:
        """[vocabulary] the pieces that stand for no text."""
        return np.array([not text for text in self.texts()], np.bool_)

    def starts_word(self) -> NDArray[np.bool_]:
        """[vocabulary] the pieces that a word begins with: after white space, or special."""
        return np.array([not text or text[0].isspace() for text in self.texts()], np.bool_)

    def ends_sentence(self) -> NDArray[np.bool_]:
        """[vocabulary] the pieces that end in . ! or ? (white space aside) or hold a newline."""
        return np.array([text.rstrip().endswith((".", "!", "?")) or "\n" in text for text in self.texts()], np.bool_)
