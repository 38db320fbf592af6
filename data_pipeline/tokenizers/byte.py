"""Bytes as tokens, numbered as ByT5 does (Xue et al. 2022): nothing to train, and any text comes back.

0 is <pad>, 1 </s> (the end of text), 2 <unk> (which nothing encodes to), and byte b is b + 3. ByT5 takes its last 100
byte ids for sentinels too, although text holds them: `objective.sentinel_ids: last`. Otherwise an objective appends its
sentinels, so that none is text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers

from data_pipeline.tokenizers.base import Tokenizer

_SPECIALS = ("<pad>", "</s>", "<unk>")
_FIRST = len(_SPECIALS)  # id of byte 0
_CONTENT = {"type": "bytes", "version": 1}
_FILE_BYTES = 256


class ByteTokenizer(Tokenizer):
    """Each byte of the UTF-8 text is a token."""

    file_name, library, library_version = "bytes.json", "bytes", str(_CONTENT["version"])
    spaces_begin_words = False
    vocabulary_size = _FIRST + 256
    end_of_text = _SPECIALS.index("</s>")

    def __init__(self) -> None:
        self.content = json.dumps(_CONTENT).encode() + b"\n"
        self.identity: str = hashlib.sha256(self.content).hexdigest()

    def save(self, path: Path) -> None:
        """Write the file that says no more than which tokenizer this is."""
        path.write_bytes(self.content)

    def encode_batch(self, texts: list[str], threads: int | None = None) -> list[NDArray[np.int32]]:
        """Token ids of each text, without an end of text; one thread does it, as fast as memory is written."""
        return [np.add(np.frombuffer(text.encode(), np.uint8), _FIRST, dtype=np.int32) for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """See `Tokenizer`."""
        first = self._characters(text.encode())
        return self.encode_batch([text])[0], np.stack([first, first + 1], axis=1)

    def special_pieces(self) -> dict[str, int]:
        """See `Tokenizer`."""
        return {piece: index for index, piece in enumerate(_SPECIALS)}

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; bytes that make no character (a window may cut one in two) show as U+FFFD."""
        array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
        of_text = (array >= _FIRST) & (array < self.vocabulary_size)
        return (array[of_text] - _FIRST).astype(np.uint8).tobytes().decode("utf-8", "replace")

    def id_of(self, piece: str) -> int | None:
        """The id of a special piece; None when there is none of this name."""
        return _SPECIALS.index(piece) if piece in _SPECIALS else None

    def to_json(self) -> str:
        """The tokenizer.json with the same ids: byte-level BPE without merges, which decodes bytes that make no
        character as `decode` does (`ByteFallback` would show U+FFFD for each byte of the whole text)."""
        vocabulary = {name: index for index, name in enumerate((*_SPECIALS, *byte_characters()))}
        built = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        built.decoder = decoders.ByteLevel()
        built.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in _SPECIALS])
        return str(built.to_str())

    def piece_bytes(self) -> list[bytes]:
        """See `Tokenizer`."""
        return [b""] * _FIRST + [bytes([byte]) for byte in range(256)]

    def texts(self) -> list[str]:
        """[259] the character of each byte; U+FFFD for one that is none by itself, "" of special pieces."""
        return [""] * _FIRST + [chr(byte) if byte < 0x80 else "\ufffd" for byte in range(256)]


def byte_characters() -> list[str]:
    """[256] the character of each byte in byte-level BPE, as GPT-2 has it: the byte's own in Latin-1 where
    that is printed, the next of those from U+0100 for the others."""
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]


def is_byte_tokenizer(content: bytes) -> bool:
    """Whether a file's bytes are those that `save` wrote, give or take white space."""
    try:
        return len(content) <= _FILE_BYTES and bool(json.loads(content) == _CONTENT)
    except (ValueError, RecursionError):
        return False
