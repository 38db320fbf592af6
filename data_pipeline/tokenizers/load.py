"""A tokenizer read from its file, whatever kind it is, or trained.

`sentencepiece.py` holds bpe and unigram, `hf_json.py` wordpiece (BERT), byte_bpe (GPT-2, RoBERTa) and whatever else a
Hugging Face tokenizer.json describes, `gpt2.py` reads GPT-2's own two files, `byte.py` is ByT5's bytes, and
`characters.py` CANINE's code points; `recorded.py` holds any of them with a record of where texts begin and end. A
package adds a kind (`pretrain.tokenizers`): its files begin with {"tokenizer": "NAME", the kind's name. `released.py`
reads a tokenizer together with the files that were released beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from data_pipeline.common.plugins import Registry
from data_pipeline.common.relative import relative_note
from data_pipeline.errors import DataError
from data_pipeline.tokenizers import byte, characters, gpt2, hf_json, recorded, sentencepiece
from data_pipeline.tokenizers.base import Tokenizer

Kind = Literal["bpe", "unigram", "wordpiece", "byte_bpe", "bytes", "characters"]
CONTROL_SYMBOLS: dict[str | None, list[str]] = {
    None: [],
    "bert": ["[PAD]", "[CLS]", "[SEP]", "[MASK]"],
    "t5": ["<pad>", "</s>"],
}
"""Special pieces of a sentencepiece model trained here besides <|endoftext|>, by `tokenizer.specials`."""
_FILES = (
    recorded.RecordedTokenizer.file_name,
    "tokenizer.json",
    "tokenizer.model",
    "bytes.json",
    "characters.json",
    "encoder.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
"""File names of a folder's tokenizer, by priority."""
_MAX_FILE_BYTES = 2**28
_HEAD_BYTES = 2**10
_WANTED = "a sentencepiece .model, a tokenizer.json, a BERT vocab.txt, or GPT-2's encoder.json beside its vocab.bpe"


def _from_record(content: bytes) -> Tokenizer:
    bare, begin, end = recorded.parts(content)
    origin = Path("the tokenizer in a record")
    return recorded.RecordedTokenizer(open_tokenizer(bare, origin, needs_end=False), bare, begin, end)


PLUGINS: Registry[Callable[[bytes], Tokenizer]] = Registry(
    "pretrain.tokenizers",
    {recorded.KIND: _from_record},
    Callable,  # type: ignore[arg-type]
)
"""Functions that make a tokenizer of a file's bytes, by the name that the file begins with."""
_PLUGIN_FILE = re.compile(rb'\s*\{\s*"tokenizer"\s*:\s*"([\w.-]+)"')


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a sentencepiece .model, a tokenizer.json, a BERT vocab.txt, GPT-2's vocabulary (encoder.json, its
    vocab.bpe beside it) bytes.json or characters.json, recognized by its contents; or a folder that contains one.

    Raises DataError when it is missing or can't be used.
    """
    path = tokenizer_file(path)
    return open_tokenizer(read_content(path), path)


def tokenizer_file(path: Path) -> Path:
    """The file that `load_tokenizer` reads of `path`: of a folder, the first that it knows."""
    return next((path / name for name in _FILES if (path / name).is_file()), path) if path.is_dir() else path


def is_tokenizer_file(path: Path) -> bool:
    """Whether a file is called as a folder's tokenizer is, or is of a kind that a package adds."""
    if not path.is_file():
        return False
    if path.name in _FILES:
        return True
    with path.open("rb") as file:
        return _PLUGIN_FILE.match(file.read(_HEAD_BYTES)) is not None


def open_tokenizer(content: bytes, path: Path, *, needs_end: bool = True) -> Tokenizer:
    """The tokenizer of a file's bytes, which were read from `path`. Raises DataError as `load_tokenizer` does, for one
    that names no end of text only if it `needs_end`."""
    if content.lstrip()[:1] == b"{":
        if byte.is_byte_tokenizer(content):
            return byte.ByteTokenizer()
        if characters.is_character_tokenizer(content):
            return characters.CharacterTokenizer()
        if named := _PLUGIN_FILE.match(content):
            return _from_plugin(named[1].decode(), content, path)
        if gpt2.is_gpt2_vocabulary(content):
            return gpt2.from_gpt2_files(content, path, needs_end)
        return hf_json.JsonTokenizer(content, str(path), needs_end)
    if hf_json.is_bert_vocabulary(content):
        return hf_json.from_bert_vocabulary(content, str(path))
    return sentencepiece.SentencePiece(content, str(path), needs_end)


def train_tokenizer(
    texts: Iterable[str],
    kind: Kind,
    vocabulary: int,
    specials: Literal["bert", "t5"] | None = None,
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
) -> Tokenizer:
    """Train on `texts`; the same texts in the same order give the same bytes, on any number of threads.

    `specials` names a row of CONTROL_SYMBOLS; wordpiece and byte_bpe have their own. `lowercase` and `strip_accents`
    (None: as `lowercase`) are wordpiece's. Raises DataError, naming the size that would do, when the texts don't fill
    or don't fit the vocabulary. There is nothing to train of bytes and characters.
    """
    if kind == "bytes":
        return byte.ByteTokenizer()
    if kind == "characters":
        return characters.CharacterTokenizer()
    if kind == "wordpiece":
        return hf_json.train_wordpiece(texts, vocabulary, hf_json.bert_normalizer(lowercase, strip_accents))
    if kind == "byte_bpe":
        return hf_json.train_byte_bpe(texts, vocabulary)
    return sentencepiece.train(texts, kind, vocabulary, CONTROL_SYMBOLS[specials])


def _from_plugin(name: str, content: bytes, path: Path) -> Tokenizer:
    if name not in PLUGINS:
        raise DataError(f"Tokenizer {path} is of the kind {name!r}, which no installed package adds; install it.")
    return PLUGINS[name](content)


def read_content(path: Path) -> bytes:
    """A tokenizer file's bytes. Raises DataError when it can't be read, or is larger than any tokenizer is."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DataError(f"Tokenizer {path} is no regular file; give {_WANTED}.")
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise DataError(f"Tokenizer {path} is larger than {_MAX_FILE_BYTES} bytes; give {_WANTED}.")
        return path.read_bytes()
    except OSError as error:
        where = relative_note(path)
        raise DataError(f"Tokenizer {path}{where} can't be read ({error.strerror}); give {_WANTED}.") from error
