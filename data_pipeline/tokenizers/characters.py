"""Characters as tokens, numbered by their code points, as CANINE reads them (Clark et al. 2022, arXiv 2103.06874):
nothing to train, and any text comes back but for the five code points that special tokens have.

Code point 0 is padding; [CLS], [SEP] (the end of text), [BOS] and [MASK] are the first code points of private use.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import Tokenizer

_SPECIALS = {"[PAD]": 0, "[CLS]": 0xE000, "[SEP]": 0xE001, "[BOS]": 0xE002, "[MASK]": 0xE003}
_IDS = np.array(list(_SPECIALS.values()))
_REPLACEMENT = 0xFFFD
_CONTENT = {"type": "characters", "version": 1}
_FILE_BYTES = 256


class CharacterTokenizer(Tokenizer):
    """Each character of a text is a token."""

    file_name, library, library_version = "characters.json", "characters", str(_CONTENT["version"])
    spaces_begin_words = False
    vocabulary_size = sys.maxunicode + 1
    end_of_text = _SPECIALS["[SEP]"]

    def __init__(self) -> None:
        self.content = json.dumps(_CONTENT).encode() + b"\n"
        self.identity: str = hashlib.sha256(self.content).hexdigest()

    def save(self, path: Path) -> None:
        """Write the file that says no more than which tokenizer this is."""
        path.write_bytes(self.content)

    def encode_batch(self, texts: list[str], threads: int | None = None) -> list[NDArray[np.int32]]:
        """Code points of each text, without an end of text. A special token's becomes U+FFFD."""
        return [_code_points(text) for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """See `Tokenizer`."""
        first = np.arange(len(text), dtype=np.int64)
        return _code_points(text), np.stack([first, first + 1], axis=1)

    def special_pieces(self) -> dict[str, int]:
        """See `Tokenizer`."""
        return dict(_SPECIALS)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of code points, without special tokens."""
        array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
        known = array[~np.isin(array, _IDS) & (array >= 0) & (array < self.vocabulary_size)]
        return known.astype("<u4").tobytes().decode("utf-32-le", "replace")

    def id_of(self, piece: str) -> int | None:
        """The id of a special piece; None when there is none of this name."""
        return _SPECIALS.get(piece)

    def to_json(self) -> str:
        """Raises DataError: the format lists pieces one by one."""
        raise DataError(
            "The tokenizer of characters has no tokenizer.json, which lists all pieces: use transformers' "
            "CanineTokenizer, which needs no file."
        )

    def is_special(self) -> NDArray[np.bool_]:
        """See `Tokenizer`; as the next two, without a list of all characters."""
        return self._members(_IDS)

    def starts_word(self) -> NDArray[np.bool_]:
        """See `Tokenizer`."""
        spaces = [point for point in range(self.vocabulary_size) if chr(point).isspace()]
        return self._members(np.array([*_IDS, *spaces]))

    def ends_sentence(self) -> NDArray[np.bool_]:
        """See `Tokenizer`."""
        return self._members(np.array([ord(character) for character in ".!?\n"]))

    def _members(self, points: NDArray[np.int64]) -> NDArray[np.bool_]:
        found = np.zeros(self.vocabulary_size, np.bool_)
        found[points] = True
        return found

    def piece_bytes(self) -> Sequence[bytes]:
        """See `Tokenizer`; without a list of all characters."""
        return _CharacterBytes()

    def texts(self) -> list[str]:
        """[1114112] the character of each code point; U+FFFD for one that is none, "" of special pieces."""
        found = [chr(i) if not 0xD800 <= i < 0xE000 else "\ufffd" for i in range(self.vocabulary_size)]
        for index in _SPECIALS.values():
            found[index] = ""
        return found


class _CharacterBytes(Sequence[bytes]):
    def __len__(self) -> int:
        return sys.maxunicode + 1

    def __getitem__(self, index: Any) -> Any:
        return b"" if index in _SPECIALS.values() else chr(index).encode("utf-8", "replace")


def _code_points(text: str) -> NDArray[np.int32]:
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<i4")
    return np.where(np.isin(points, _IDS), _REPLACEMENT, points).astype(np.int32)


def is_character_tokenizer(content: bytes) -> bool:
    """Whether a file's bytes are those that `save` wrote, give or take white space."""
    try:
        return len(content) <= _FILE_BYTES and bool(json.loads(content) == _CONTENT)
    except (ValueError, RecursionError):
        return False
