"""sentencepiece, made lossless: what is encoded comes back character for character, whatever the text holds.

A tokenizer trained here changes no character (identity normalizer, no added or removed spaces, newlines kept), spells
what it has no piece for in bytes, and has <|endoftext|> as a control symbol that no text can produce.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import END_OF_TEXT, NO_END, Tokenizer
from data_pipeline.tokenizers.sentencepiece_json import convert, parse

_SPACE = "\u2581"  # stands for a space inside sentencepiece, so it can't stand for itself
_PROBE = "Do you know\tthe Würzburg \u4e2d? \U0001f600\n"
_SAMPLE_CHARACTERS = 2**12  # the trainer skips "sentences" longer than a limit without a word: hand it short ones
_ENCODE_CHARACTERS = 2**14  # one call's text; longer is slower, and takes memory in proportion
_CUT = re.compile(r"[^ \u2581](?= )")
_SCORE_STEPS = (
    2**8
)  # in 1: sums of scores are exact in fp32, so whoever sums them, in what order, finds the same pieces
_THREADS = 4  # of the trainer: fixed, since the result of unigram depends on it in the last digit


class SentencePiece(Tokenizer):
    """A sentencepiece model of any type."""

    file_name, library = "tokenizer.model", "sentencepiece"

    def __init__(self, model: bytes, origin: str, needs_end: bool = True) -> None:
        """`model` is a model file's bytes, `origin` what errors call it. Raises DataError when it can't be used, and
        when it has no end of text or of sentence where it `needs_end`."""
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
            self.vocabulary_size: int = self._processor.vocab_size()
            self.texts()  # a piece that is not UTF-8 shows only when it is asked for
            self._processor.encode(_PROBE)
        except (RuntimeError, ValueError) as error:
            raise DataError(f"{origin} is not a sentencepiece model; give a .model file.") from error
        self._model, self._origin = model, origin
        self.library_version = sentencepiece.__version__
        self.end_of_text: int = self._find_end_of_text(origin, needs_end)
        self.identity: str = self._digest()
        encode = self._processor.encode
        # A model that puts a space before every text must get each text in one go.
        self._can_cut = encode("a b") == encode("a") + encode(" b")
        spelled = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE.encode()]
        self._space_spelled = spelled if all(map(self._processor.is_byte, spelled)) else None

    def save(self, path: Path) -> None:
        """Write the .model file."""
        path.write_bytes(self._model)

    def encode_batch(self, texts: list[str], threads: int | None = None) -> list[NDArray[np.int32]]:
        """Token ids of each text, on `threads` (default: one per core)."""
        parts: list[str] = []
        ends: list[int] = []
        for text in texts:
            parts.extend(_cut(text) if self._can_cut else [text])
            ends.append(len(parts))
        ids = self._processor.encode_as_numpy(parts, num_threads=threads or os.cpu_count() or 1)
        if self._space_spelled:
            for row, part in enumerate(parts):
                if _SPACE in part:
                    ids[row] = self._encode_around_space_signs(part)
        starts = [0, *ends[:-1]]
        return [np.concatenate([*ids[a:b], np.empty(0, np.int32)]) for a, b in zip(starts, ends, strict=True)]

    def encode_with_offsets(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """See `Tokenizer`."""
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        begin = 0
        for part in _cut(text) if self._can_cut else [text]:
            for number, piece in enumerate(part.split(_SPACE) if self._space_spelled else [part]):
                if number:  # the space sign before it
                    assert self._space_spelled is not None
                    size = len(_SPACE.encode())
                    ids += self._space_spelled
                    spans += [(begin, begin + size)] * size
                    begin += size
                found = self._processor.encode(piece, return_type="proto").pieces
                ends = [one.end for one in found]
                for index in reversed(range(len(ends) - 1)):
                    if ends[index] == found[index].begin:  # a byte, but not the last one of its character
                        ends[index] = ends[index + 1]
                ids += [one.id for one in found]
                spans += [(begin + one.begin, begin + end) for one, end in zip(found, ends, strict=True)]
                begin += len(piece.encode())
        characters = np.append(self._characters(text.encode()), len(text))
        offsets = np.array(spans, np.int64).reshape(-1, 2)
        offsets = np.stack([characters[offsets[:, 0]], characters[np.maximum(offsets[:, 1] - 1, 0)] + 1], axis=1)
        return np.array(ids, np.int32), np.minimum(offsets, len(text))

    def _encode_between(self, text: str, is_first: bool) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """See `Tokenizer`. Only the first of them gets the space that a model may put before a text, as transformers'
        LlamaTokenizer has it."""
        tokenizer = self if is_first or self._can_cut else self._without_prefix
        return tokenizer.encode_with_offsets(text)

    @cached_property
    def _without_prefix(self) -> SentencePiece:
        proto = parse(self._model)
        proto.normalizer_spec.add_dummy_prefix = False
        return SentencePiece(proto.SerializeToString(deterministic=True), self._origin, needs_end=False)

    def special_pieces(self) -> dict[str, int]:
        """See `Tokenizer`."""
        model = self._processor
        return {model.id_to_piece(index): index for index in range(self.vocabulary_size) if model.is_control(index)}

    @property
    def unknown(self) -> int | None:
        """See `Tokenizer`. A model with bytes spells any text."""
        return None if self._space_spelled else int(self._processor.unk_id())

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; bytes that make no character (a window may cut one in two) show as U+FFFD."""
        return str(self._processor.decode([int(i) for i in ids]))

    def id_of(self, piece: str) -> int | None:
        """The id of a control symbol; None when the model has none of this name."""
        index: int = self._processor.piece_to_id(piece)
        found = self._processor.id_to_piece(index) == piece and self._processor.is_control(index)
        return index if found else None

    def texts(self) -> list[str]:
        """[vocabulary] the text of each piece; U+FFFD for a byte that is no character, "" of special ones."""
        return [self._text(index) for index in range(self.vocabulary_size)]

    def piece_bytes(self) -> list[bytes]:
        """See `Tokenizer`."""
        bytes_of = [text.encode() for text in self.texts()]
        for index in filter(self._processor.is_byte, range(self.vocabulary_size)):
            bytes_of[index] = bytes([int(self._processor.id_to_piece(index)[3:5], 16)])
        return bytes_of

    def to_json(self) -> str:
        """The tokenizer.json with the same ids. Raises DataError for what that format has no word for."""
        return str(convert(self._model, self._origin).to_str())

    def _text(self, index: int) -> str:
        model = self._processor
        if model.is_control(index) or model.is_unknown(index) or model.is_unused(index):
            return ""
        piece: str = model.id_to_piece(index)
        if not model.is_byte(index):
            return piece.replace(_SPACE, " ")
        byte = int(piece[3:5], 16)
        return chr(byte) if byte < 0x80 else "\ufffd"

    def _encode_around_space_signs(self, text: str) -> NDArray[np.int32]:
        """Like encode, but with each U+2581 spelled in bytes, so that it doesn't come back as a space."""
        first, *others = text.split(_SPACE)
        ids = self._processor.encode(first)
        for other in others:
            ids += self._space_spelled + self._processor.encode(other)
        return np.array(ids, np.int32)

    def _find_end_of_text(self, origin: str, needs_end: bool) -> int:
        found = self.id_of(END_OF_TEXT)
        if found is not None:
            return found
        if self._processor.eos_id() < 0:
            if not needs_end:
                return NO_END
            raise DataError(f"{origin} has neither {END_OF_TEXT} nor an end-of-sentence piece to end documents with.")
        return self._processor.eos_id()

    def _digest(self) -> str:
        """All that ids depend on: the model, and for unigram the library (0.2.1 and 0.2.2 give different ids).

        The scores of a BPE model are ranks, those of a unigram model logarithms of probabilities.
        """
        digest = hashlib.sha256(self._model)
        if not all(self._processor.get_score(i).is_integer() for i in range(self.vocabulary_size)):
            digest.update(sentencepiece.__version__.encode())
        return digest.hexdigest()


def train(
    texts: Iterable[str], type: Literal["bpe", "unigram"], vocabulary: int, control_symbols: list[str]
) -> SentencePiece:
    """Train on `texts`, with <|endoftext|> and `control_symbols`. Raises DataError as train_tokenizer says."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_short(texts),
            model_writer=model,
            model_type=type,
            vocab_size=vocabulary,
            normalization_rule_name="identity",
            byte_fallback=True,
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            control_symbols=[END_OF_TEXT, *control_symbols],
            max_sentence_length=8 * _SAMPLE_CHARACTERS,
            num_threads=_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise DataError(_training_problem(str(error), vocabulary)) from error
    trained = parse(model.getvalue())
    for piece in trained.pieces:
        piece.score = round(piece.score * _SCORE_STEPS) / _SCORE_STEPS
    return SentencePiece(trained.SerializeToString(deterministic=True), "the trained tokenizer")


def _short(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), _SAMPLE_CHARACTERS):
            yield text[start : start + _SAMPLE_CHARACTERS]


def _cut(text: str) -> list[str]:
    """Parts that encode, each alone, as they would together: cut before a space after something else.

    A piece that is trained here holds a space only at its start, so no piece reaches over such a cut.
    """
    if len(text) <= _ENCODE_CHARACTERS:
        return [text]
    parts, start = [], 0
    while start < len(text):
        found = _CUT.search(text, start + _ENCODE_CHARACTERS)
        end = found.start() + 1 if found else len(text)
        parts.append(text[start:end])
        start = end
    return parts


def _training_problem(message: str, vocabulary: int) -> str:
    if match := re.search(r"too high .* value <= (\d+)", message):
        return f"The text is too small for tokenizer.vocabulary={vocabulary}; the largest possible is {match[1]}."
    if match := re.search(r"\d+ vs (\d+)", message):
        return (
            f"tokenizer.vocabulary={vocabulary} can't hold the text's characters; the smallest possible is {match[1]}."
        )
    return f"The tokenizer can't be trained ({message}); give more text or a tokenizer.path."
