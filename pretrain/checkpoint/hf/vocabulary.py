"""The tokenizer of a folder of Hugging Face's, for `pretrain import`: one that is there, that the model has ids for,
and that all its files agree on."""

import re
from pathlib import Path
from typing import Any

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.byte import ByteTokenizer
from data_pipeline.tokenizers.characters import CharacterTokenizer
from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.checkpoint.hf.folder import read_json
from pretrain.checkpoint.hf.tokenizer import ORIGINAL, SENTINEL_IDS
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "bytes.json",
)
_PAIR = ("vocab.json", "merges.txt")
_MARIAN = ("source.spm", "target.spm")
_BYTE = re.compile("<0x[0-9A-F]{2}>|[\0-\x7f\ufffd]")  # a byte has several spellings


def read(directory: Path, config: RunConfig) -> bytes:
    """The bytes of a file that the data pipeline reads. Raises ConfigError where there is none, where files disagree,
    and where the model of `config` has fewer ids."""
    tokenizer_files = [path for path in (*_in(directory / ORIGINAL), *_in(directory)) if path.is_file()]
    if all((directory / name).is_file() for name in _PAIR):
        tokenizer_files.append(directory / _PAIR[0])
    if config.model.characters is not None:  # of which every folder has the same
        return CharacterTokenizer().content
    if not tokenizer_files and _is_byt5(directory):
        return ByteTokenizer().content
    if not tokenizer_files:
        two = [name for name in _MARIAN if (directory / name).is_file()]
        raise ConfigError(
            f"{directory} has {' and '.join(two)}, two vocabularies, and no tokenizer.json of both: put one there"
            if two
            else f"{directory} has no tokenizer: put its tokenizer.json, .model or vocab.txt there"
        )
    first, *further_files = tokenizer_files
    tokenizer = _load(first)
    texts = tokenizer.texts()
    for file in further_files:
        for a, b in zip(texts, _load(file).texts(), strict=False):
            if a != b and a and b and not _BYTE.fullmatch(a) and not _BYTE.fullmatch(b):
                raise ConfigError(
                    f"{first} and {file} are two vocabularies: remove the one that the model was not trained on"
                )
    needed = config.objective.specials(tokenizer).vocabulary
    if needed > config.model.vocab_size:
        raise ConfigError(
            f"{first} has {tokenizer.vocabulary_size} ids, {needed} with those that objective.name="
            f"{config.objective.name} needs, and config.json has vocab_size {config.model.vocabulary}: they do not "
            "belong together"
        )
    return tokenizer.to_json().encode() if first.name == _PAIR[0] else first.read_bytes()


def last_are_sentinels(directory: Path) -> bool:
    """Whether the folder says that the tokenizer's last ids are sentinels: ByT5's are, and an export says it."""
    return _is_byt5(directory) or _settings(directory).get(SENTINEL_IDS) == "last"


def _is_byt5(directory: Path) -> bool:
    """Its tokenizer has no file."""
    return _settings(directory).get("tokenizer_class") == "ByT5Tokenizer"


def _settings(directory: Path) -> dict[str, Any]:
    path = directory / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def _in(directory: Path) -> list[Path]:
    return [directory / name for name in TOKENIZER_FILES]


def _load(path: Path) -> Tokenizer:
    try:
        return load_tokenizer(path)
    except DataError as error:
        raise ConfigError(str(error)) from None
