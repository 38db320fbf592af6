"""manifest.json: what a dataset directory holds, where each stretch of tokens lies, and digests that prove it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from data_pipeline.errors import DataError

MANIFEST = "manifest.json"
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
    library: str = Field(default="sentencepiece", description="what encoded: sentencepiece, tokenizers or bytes")
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
    pairs: bool = Field(default=False, description="each document is two texts, both followed by an end of text")

    def save(self, directory: Path) -> None:
        """Write manifest.json, the same bytes for the same content."""
        (directory / MANIFEST).write_text(json.dumps(self.model_dump(), indent=1, sort_keys=True) + "\n")

    @classmethod
    def load(cls, directory: Path) -> Manifest:
        """Read and check manifest.json. Raises DataError when it is missing, damaged or of another format."""
        path = directory / MANIFEST
        try:
            values = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise DataError(
                f"{directory} holds no {MANIFEST}; build a dataset there with `pretrain data build`."
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(f"{path} can't be read ({error}); remove {directory} and build it again.") from error
        if isinstance(values, dict) and values.get("format") != FORMAT:
            raise DataError(f"{path} is of format {values.get('format')}, this program reads {FORMAT}; build it again.")
        try:
            manifest = cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise DataError(f"{path} is damaged at {where} ({first['msg']}); build it again.") from error
        if manifest.identity != stream_identity(manifest.tokenizer.identity, manifest.dtype, manifest.splits):
            raise DataError(f"{path} was changed by hand: its identity isn't that of its shards; build it again.")
        return manifest


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
