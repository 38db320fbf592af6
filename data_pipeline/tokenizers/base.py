"""Text <-> token ids: what every kind of tokenizer answers, and how one is read or trained.

`tokenizer_sentencepiece.py` holds bpe and unigram, `tokenizer_json.py` wordpiece (BERT), byte_bpe (GPT-2, RoBERTa) and
whatever else a Hugging Face tokenizer.json describes, `tokenizer_gpt2.py` reads GPT-2's own two files, and
`tokenizer_bytes.py` is ByT5's bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError

END_OF_TEXT = "<|endoftext|>"
Kind = Literal["bpe", "unigram", "wordpiece", "byte_bpe", "bytes"]
_FILES = ("tokenizer.json", "tokenizer.model", "bytes.json", "encoder.json", "vocab.json", "vocab.txt")
"""What a folder's tokenizer is called, the first that there is."""
_MAX_FILE_BYTES = 2**28
_WANTED = "a sentencepiece .model, a tokenizer.json, a BERT vocab.txt, or GPT-2's encoder.json beside its vocab.bpe"
CONTROL_SYMBOLS: dict[str | None, list[str]] = {
    None: [],
    "bert": ["[PAD]", "[CLS]", "[SEP]", "[MASK]"],
    "t5": ["<pad>", "</s>"],
}
"""What a sentencepiece model trained here holds besides <|endoftext|>, by `tokenizer.specials`."""


class Tokenizer(ABC):
    """Text <-> token ids. A special piece is one that no text encodes to."""

    file_name: ClassVar[str]
    """What the file is called in a dataset's directory."""
    library: ClassVar[str]
    library_version: str
    vocabulary_size: int
    end_of_text: int
    """The id after each document."""
    identity: str
    """Digest of all that ids depend on."""

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a sentencepiece .model, a tokenizer.json, a BERT vocab.txt, GPT-2's vocabulary (encoder.json, its
        vocab.bpe beside it) or bytes.json, told apart by what is in it; of a folder, the one that lies there.

        Raises DataError when it is missing or can't be used.
        """
        # Imported here, since each kind is made of this class.
        from data_pipeline.tokenizers import byte as tokenizer_bytes
        from data_pipeline.tokenizers import gpt2 as tokenizer_gpt2
        from data_pipeline.tokenizers import hf_json as tokenizer_json
        from data_pipeline.tokenizers.sentencepiece import SentencePiece

        if path.is_dir():
            path = next((path / name for name in _FILES if (path / name).is_file()), path)
        content = _content(path)
        if content.lstrip()[:1] == b"{":
            if tokenizer_bytes.is_byte_tokenizer(content):
                return tokenizer_bytes.ByteTokenizer()
            if tokenizer_gpt2.is_gpt2_vocabulary(content):
                return tokenizer_gpt2.from_gpt2_files(content, path)
            return tokenizer_json.JsonTokenizer(content, str(path))
        if tokenizer_json.is_bert_vocabulary(content):
            return tokenizer_json.from_bert_vocabulary(content, str(path))
        return SentencePiece(content, str(path))

    @classmethod
    def train(
        cls, texts: Iterable[str], type: Kind, vocabulary: int, specials: Literal["bert", "t5"] | None = None
    ) -> Tokenizer:
        """Train on `texts`; the same texts in the same order give the same bytes, on any number of threads.

        `specials` names a row of CONTROL_SYMBOLS; wordpiece and byte_bpe have their own. Raises DataError, naming the
        size that would do, when the texts don't fill or don't fit the vocabulary. There is nothing to train of bytes.
        """
        from data_pipeline.tokenizers import hf_json as tokenizer_json
        from data_pipeline.tokenizers.byte import ByteTokenizer
        from data_pipeline.tokenizers.sentencepiece import train

        if type == "bytes":
            return ByteTokenizer()
        if type == "wordpiece":
            return tokenizer_json.train_wordpiece(texts, vocabulary)
        if type == "byte_bpe":
            return tokenizer_json.train_byte_bpe(texts, vocabulary)
        return train(texts, type, vocabulary, CONTROL_SYMBOLS[specials])

    @abstractmethod
    def encode_batch(self, texts: list[str], threads: int | None = None) -> list[NDArray[np.int32]]:
        """Token ids of each text, without an end of text, on `threads` (default: one per core)."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; bytes that make no character (a window may cut one in two) show as U+FFFD."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write the file that `load` reads."""

    @abstractmethod
    def id_of(self, piece: str) -> int | None:
        """The id of a special piece such as "[MASK]"; None when the tokenizer has none of this name."""

    @abstractmethod
    def texts(self) -> list[str]:
        """[vocabulary] the text of each piece, with a space before what begins a word; "" of special ones."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without an end of text."""
        ids: list[int] = self.encode_batch([text], threads=1)[0].tolist()
        return ids

    def is_special(self) -> NDArray[np.bool_]:
        """[vocabulary] the pieces that stand for no text."""
        return np.array([not text for text in self.texts()], np.bool_)

    def starts_word(self) -> NDArray[np.bool_]:
        """[vocabulary] the pieces that a word begins with: after white space, or special."""
        return np.array([not text or text[0].isspace() for text in self.texts()], np.bool_)

    def ends_sentence(self) -> NDArray[np.bool_]:
        """[vocabulary] the pieces that end in . ! or ? (white space aside) or hold a newline."""
        return np.array([text.rstrip().endswith((".", "!", "?")) or "\n" in text for text in self.texts()], np.bool_)


def _content(path: Path) -> bytes:
    """A tokenizer file's bytes. Raises DataError when it can't be read, or is larger than any tokenizer is."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise DataError(f"Tokenizer {path} is larger than {_MAX_FILE_BYTES} bytes; give {_WANTED}.")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"Tokenizer {path} can't be read ({error.strerror}); give {_WANTED}.") from error
