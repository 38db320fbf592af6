"""manifest.json: what a dataset directory holds, where each stretch of tokens lies, and digests that prove it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from data_pipeline.errors import DataError

MANIFEST, MIX = "manifest.json", "mix.json"
FORMAT: Literal[1] = 1
SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Member(_Record):
    """One stretch of the token stream inside a shard."""

    offset: int = Field(ge=0, description="bytes from the start of the shard to the first token")
    tokens: int = Field(gt=0)


class Shard(_Record):
    """One tar file."""

    file: str
    sha256: str
    bytes: int
    documents: int
    tokens: int
    members: tuple[Member, ...]


class Split(_Record):
    """One split's stream of tokens, in the order of its shards; every document is followed by an end of text."""

    documents: int
    tokens: int = Field(description="tokens, ends of text included")
    text_bytes: int = Field(description="bytes of the documents in UTF-8")
    words: int = Field(description="words of the documents, split at white space")
    shards: tuple[Shard, ...]


class TokenizerRecord(_Record):
    """The tokenizer file and what follows from it."""

    file: str
    sha256: str
    identity: str = Field(description="digest of all that token ids depend on")
    library: str = Field(default="sentencepiece", description="what encoded: sentencepiece or tokenizers")
    # Older manifests name the version after the only library that there was.
    version: str = Field(validation_alias=AliasChoices("version", "sentencepiece"), description="of the library")
    vocabulary: int
    end_of_text: int


class File(_Record):
    """A file by its content."""

    file: str
    bytes: int
    sha256: str


class BuildRecord(_Record):
    """What the dataset was built from. `identity` digests all that decides its content."""

    identity: str
    config: dict[str, Any]
    source: str = ""
    """Which of the config's sources this is; empty when it has one input."""
    inputs: tuple[File, ...]
    validation_inputs: tuple[File, ...] = ()


class Manifest(_Record):
    """Everything about a dataset but its tokens."""

    format: Literal[1] = FORMAT
    identity: str = Field(description="digest of tokenizer and tokens: equal exactly when the streams are equal")
    dtype: Literal["uint16", "uint32"]
    tokenizer: TokenizerRecord
    unigram: File = Field(description="int64 [vocabulary] counts of each token in the training split, as .npy")
    splits: dict[SplitName, Split]
    build: BuildRecord
    report: File | None = Field(default=None, description="what the steps of the build saw, kept and dropped, as .json")
    pairs: bool = Field(default=False, description="each document is two texts, both followed by an end of text")

    def save(self, directory: Path) -> None:
        """Write manifest.json, the same bytes for the same content."""
        _save(self, directory / MANIFEST)

    @classmethod
    def load(cls, directory: Path) -> Manifest:
        """Read and check manifest.json. Raises DataError when it is missing, damaged or of another format."""
        path = directory / MANIFEST
        manifest: Manifest = _load(cls, path)
        if manifest.identity != stream_identity(manifest.tokenizer.identity, manifest.dtype, manifest.splits):
            raise DataError(f"{path} was changed by hand: its identity isn't that of its shards; build it again.")
        return manifest


class MixSource(_Record):
    """One dataset of a mix."""

    name: str = Field(description="the dataset's folder")
    weight: float
    identity: str = Field(description="the dataset's")


class Mix(_Record):
    """mix.json: datasets that were built together, each in a folder by its name, with one tokenizer."""

    format: Literal[1] = FORMAT
    identity: str = Field(description="digest of all that decides the content")
    sources: tuple[MixSource, ...]

    def save(self, directory: Path) -> None:
        """Write mix.json, the same bytes for the same content."""
        _save(self, directory / MIX)

    @classmethod
    def load(cls, directory: Path) -> Mix:
        """Read and check mix.json. Raises DataError when it is missing, damaged or of another format."""
        mix: Mix = _load(cls, directory / MIX)
        return mix


def _save(record: BaseModel, path: Path) -> None:
    path.write_text(json.dumps(record.model_dump(), indent=1, sort_keys=True) + "\n")


def _load(kind: type[Any], path: Path) -> Any:
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(
            f"{path.parent} holds no {path.name}; build a dataset there with `pretrain data build`."
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} can't be read ({error}); remove {path.parent} and build it again.") from error
    if isinstance(values, dict) and values.get("format") != FORMAT:
        raise DataError(f"{path} is of format {values.get('format')}, this program reads {FORMAT}; build it again.")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"{path} is damaged at {where} ({first['msg']}); build it again.") from error


def stream_identity(tokenizer: str, dtype: str, splits: dict[SplitName, Split]) -> str:
    """Digest of the tokenizer's identity and of the shards of every split, in order."""
    shards = {name: [shard.sha256 for shard in splits[name].shards] for name in SPLITS if name in splits}
    return digest_of({"tokenizer": tokenizer, "dtype": dtype, "shards": shards})


def digest_of(values: Any) -> str:
    """sha256 over plain values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
