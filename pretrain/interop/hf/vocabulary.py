"""The tokenizer of a folder of Hugging Face's, for `pretrain import`: one that is there, that the model has ids for,
and that all its files agree on."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.byte import ByteTokenizer
from data_pipeline.tokenizers.characters import CharacterTokenizer
from data_pipeline.tokenizers.load import is_tokenizer_file, open_tokenizer, read_content
from data_pipeline.tokenizers.released import AS_RELEASED, DocumentBounds, load_released
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.interop.hf.folder import read_json
from pretrain.interop.hf.tokenizer import ORIGINAL, SENTINEL_IDS

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
_OTHER_NUMBERS = ("sentencepiece.bpe.model",)  # XLM-R's and CamemBERT's
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")
_BYTE = re.compile("<0x[0-9A-F]{2}>|[\0-\x7f\ufffd]")  # a byte has several spellings


def read(
    directory: Path,
    config: RunConfig,
    bounds: DocumentBounds = AS_RELEASED,
    warn: Callable[[str], None] = lambda line: None,
) -> bytes:
    """The bytes of a file that the data pipeline reads, with texts that begin and end as `bounds` or the folder's files
    say. Raises ConfigError where there is none, where files disagree, and where the model of `config` has fewer ids."""
    if config.model.capabilities.hashes_inputs:  # of which every folder has the same
        return CharacterTokenizer().content
    own = exported(directory)
    files = [path for path in (*own, *(directory / name for name in TOKENIZER_FILES)) if path.is_file()]
    if all((directory / name).is_file() for name in _PAIR):
        files.append(directory / _PAIR[0])
    if not files and _is_byt5(directory):
        return ByteTokenizer().content
    if not files:
        two = [name for name in _MARIAN if (directory / name).is_file()]
        raise ConfigError(
            f"{directory} has {' and '.join(two)}, two vocabularies, and no tokenizer.json of both: put one there"
            if two
            else f"{directory} has no tokenizer: put its tokenizer.json, .model or vocab.txt there"
        )
    first, *further_files = files
    try:
        released = load_released(first, bounds)
    except DataError as error:
        raise ConfigError(str(error)) from None
    for note in released.notes:
        warn(note)
    tokenizer = released.tokenizer
    _check_further(first, tokenizer, further_files)
    needed = config.objective.specials(tokenizer).vocabulary
    if needed > config.model.vocab_size:
        raise ConfigError(
            f"{first} has {tokenizer.vocabulary_size} ids, {needed} with those that objective.name="
            f"{config.objective.name} needs, and config.json has vocab_size {config.model.vocabulary}: they do not "
            "belong together"
        )
    return released.content


def _check_further(first: Path, tokenizer: Tokenizer, files: list[Path]) -> None:
    """Raises ConfigError where another file of the folder has other pieces under the ids of `first`. Beside a
    tokenizer.json, which wins, one that is no tokenizer by itself says nothing, and neither does one of fairseq, whose
    ids are counted from another number."""
    wins = first.name == TOKENIZER_FILES[0]
    texts = tokenizer.texts()
    for file in files:
        if wins and file.name in _OTHER_NUMBERS:
            continue
        try:
            others = open_tokenizer(read_content(file), file, needs_end=not wins).texts()
        except DataError as error:
            if wins:
                continue
            raise ConfigError(str(error)) from None
        for a, b in zip(texts, others, strict=False):
            if a != b and a and b and not _BYTE.fullmatch(a) and not _BYTE.fullmatch(b):
                raise ConfigError(
                    f"{first} and {file} are two vocabularies: remove the one that the model was not trained on"
                )


def exported(directory: Path) -> list[Path]:
    """The tokenizer's own file in a folder that an export of ours wrote, which has nothing else in `original`; []: it
    is none. Others (Llama 3's) keep files of other formats there."""
    folder = directory / ORIGINAL
    files = list(folder.iterdir()) if folder.is_dir() else []
    if len(files) != 1 or not is_tokenizer_file(files[0]):
        return []
    return [] if _TIKTOKEN.match(read_content(files[0])) else files


def last_are_sentinels(directory: Path) -> bool:
    """Whether the folder says that the tokenizer's last ids are sentinels: ByT5's are, and an export says it."""
    return _is_byt5(directory) or _settings(directory).get(SENTINEL_IDS) == "last"


def _is_byt5(directory: Path) -> bool:
    """Its tokenizer has no file."""
    return _settings(directory).get("tokenizer_class") == "ByT5Tokenizer"


def _settings(directory: Path) -> dict[str, Any]:
    path = directory / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}
