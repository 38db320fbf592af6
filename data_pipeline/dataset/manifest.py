"""manifest.json: what a dataset directory holds, where each span of tokens lies, and digests that prove it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import numpy as np
from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from data_pipeline.errors import DataError

MANIFEST = "manifest.json"
FORMAT: Literal[1] = 1
_CHECKSUM = "checksum"
SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)
LIMIT_BYTES = 2**28
"""Of a manifest: a terabyte of tokens in members of two megabytes takes about half of it."""
_MOST_BYTES, _MOST_TOKENS = 2**50, 2**50  # sums of them stay far within 64 bits
_BLOCK_BYTES = 512  # that a tar is made of


def _plain_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}", name):
        raise ValueError("the name of a file in the dataset's directory has to be letters, digits and ._- only")
    return name


Bytes = Annotated[int, Field(ge=0, le=_MOST_BYTES)]
Count = Annotated[int, Field(ge=0, le=_MOST_TOKENS)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, AfterValidator(_plain_name)]
"""Of a file in the dataset's own directory."""


class StrictRecord(BaseModel):
    """What a dataset's files say of themselves."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Record = TypeVar("Record", bound=BaseModel)


class Member(StrictRecord):
    """One span of the token stream inside a shard."""

    offset: Bytes = Field(description="bytes from the start of the shard to the first token")
    tokens: int = Field(gt=0, le=2**31, description="read and fetched as a whole where it is needed")
    # Older manifests have neither: such datasets can be read only where they lie.
    sha256: Sha256 | None = Field(default=None, description="of the tokens' bytes")
    head_sha256: Sha256 | None = Field(
        default=None, description="of the bytes since the tokens before: the documents' records and starts"
    )


class Shard(StrictRecord):
    """One tar file."""

    file: Name
    sha256: Sha256
    bytes: Bytes
    documents: Count
    tokens: Count
    members: tuple[Member, ...] = Field(min_length=1)

    def head(self, number: int, itemsize: int) -> tuple[int, int]:
        """(first, last + 1) byte of what lies before the tokens of member `number`, after those of the one before."""
        member = self.members[number]
        if number == 0:
            return 0, member.offset
        before = self.members[number - 1]
        end = before.offset + before.tokens * itemsize
        return -(-end // _BLOCK_BYTES) * _BLOCK_BYTES, member.offset

    @model_validator(mode="after")
    def _sums_up(self) -> Self:
        if self.tokens != sum(member.tokens for member in self.members):
            raise ValueError(f"{self.file} has another number of tokens than its members together")
        return self


class Split(StrictRecord):
    """One split's stream of tokens, in the order of its shards; every document is followed by an end of text."""

    documents: Count
    tokens: Count = Field(description="tokens, ends of text included")
    text_bytes: Count = Field(description="bytes of the documents in UTF-8")
    words: Count = Field(description="words of the documents, split at white space")
    shards: tuple[Shard, ...]

    @model_validator(mode="after")
    def _sums_up(self) -> Self:
        for name in ("documents", "tokens"):
            if getattr(self, name) != sum(getattr(shard, name) for shard in self.shards):
                raise ValueError(f"it has another number of {name} than its shards together")
        return self


class TokenizerRecord(StrictRecord):
    """The tokenizer file and what follows from it."""

    file: Name
    sha256: Sha256
    identity: str = Field(description="digest of all that token ids depend on")
    library: str = Field(default="sentencepiece", description="what encoded: sentencepiece, tokenizers or bytes")
    # Older manifests name the version after the only library that there was.
    version: str = Field(validation_alias=AliasChoices("version", "sentencepiece"), description="of the library")
    vocabulary: int = Field(gt=0, le=2**32)
    end_of_text: int = Field(ge=0)


class FileRecord(StrictRecord):
    """A file by its content."""

    file: str
    bytes: Bytes
    sha256: Sha256


class BuildRecord(StrictRecord):
    """What the dataset was built from. `identity` digests all that decides its content."""

    identity: str
    config: dict[str, Any]
    source: str = ""
    """Which of the config's sources this is; empty when it has one input."""
    inputs: tuple[FileRecord, ...]
    validation_inputs: tuple[FileRecord, ...] = ()


class DatasetManifest(StrictRecord):
    """Everything about a dataset but its tokens."""

    format: Literal[1] = FORMAT
    identity: str = Field(description="digest of tokenizer and tokens: equal exactly when the streams are equal")
    dtype: Literal["uint16", "uint32"]
    tokenizer: TokenizerRecord
    unigram: FileRecord = Field(description="int64 [vocabulary] counts of each token in the training split, as .npy")
    splits: dict[SplitName, Split]
    build: BuildRecord
    report: FileRecord | None = Field(
        default=None, description="what the steps of the build saw, kept and dropped, as .json"
    )
    pairs: bool = Field(default=False, description="each document is two texts, both followed by an end of text")

    @property
    def small_files(self) -> tuple[TokenizerRecord | FileRecord, ...]:
        """All but the shards."""
        return (self.tokenizer, self.unigram, *((self.report,) if self.report is not None else ()))

    @property
    def itemsize(self) -> int:
        """Bytes of a token."""
        return np.dtype(self.dtype).itemsize

    def save(self, directory: Path) -> None:
        """Write manifest.json, the same bytes for the same content."""
        save_record(self, directory / MANIFEST)

    @classmethod
    def load(cls, directory: Path) -> DatasetManifest:
        """Read and check manifest.json. Raises DataError when it is missing, damaged or of another format."""
        path = directory / MANIFEST
        return cls.parse(record_bytes(path), str(path))

    @classmethod
    def parse(cls, content: bytes, path: str) -> DatasetManifest:
        """Check the bytes of a manifest.json, which errors call `path`. Raises DataError as `load` does."""
        manifest, intact = parse_record(cls, content, path)
        if manifest.identity != stream_identity(manifest.tokenizer.identity, manifest.dtype, manifest.splits):
            raise DataError(f"{path} was changed by hand: its identity isn't that of its shards; build it again.")
        manifest._check_offsets(path)
        if not intact:
            raise DataError(f"{path} was changed by hand: its checksum isn't that of its content; build it again.")
        return manifest

    def _check_offsets(self, path: str) -> None:
        """Raises DataError unless every member's tokens lie in its shard, in order and apart."""
        for split in self.splits.values():
            for shard in split.shards:
                heads = [shard.head(number, self.itemsize) for number in range(len(shard.members))]
                ends = [member.offset + member.tokens * self.itemsize for member in shard.members]
                if any(begin > end or end % self.itemsize for begin, end in heads) or any(
                    end > shard.bytes for end in ends
                ):
                    raise DataError(f"{path} places tokens outside {shard.file}, or over others; build it again.")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for small in self.small_files:
            _plain_name(small.file)
        for name in SPLITS:
            if name not in self.splits or not self.splits[name].tokens:
                raise ValueError(f"there are no tokens of the {name} split")
        if self.tokenizer.end_of_text >= self.tokenizer.vocabulary:
            raise ValueError("the end of text is no token of the vocabulary")
        return self


def save_record(record: BaseModel, path: Path) -> None:
    """Write a record and its checksum, the same bytes for the same content."""
    values = json.loads(json.dumps(record.model_dump()))  # as they will be read
    values[_CHECKSUM] = digest_of(values)
    content = json.dumps(values, indent=1, sort_keys=True) + "\n"
    if len(content) > LIMIT_BYTES:
        raise DataError(f"{path} would have more than {LIMIT_BYTES:,} bytes; build with larger member_tokens.")
    path.write_text(content)


def record_bytes(path: Path) -> bytes:
    """The file of a record. Raises DataError when it is missing, or larger than any."""
    try:
        if path.exists() and not path.is_file():  # a pipe would keep us waiting
            raise DataError(f"{path} is no file; build the dataset again.")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > LIMIT_BYTES:
                raise _too_large(str(path))
            return file.read(size)
    except FileNotFoundError as error:
        raise DataError(
            f"{path.parent} holds no {path.name}; build a dataset there with `pretrain data build`."
        ) from error
    except OSError as error:
        raise DataError(f"{path} can't be read ({error}); remove {path.parent} and build it again.") from error


def parse_record(kind: type[Record], content: bytes, path: str) -> tuple[Record, bool]:
    """(the record, whether its checksum is right). Raises DataError for what is none, of this format."""
    if len(content) > LIMIT_BYTES:
        raise _too_large(path)
    try:
        values = json.loads(content)
        # Of all the rest; older manifests have none.
        checksum = values.pop(_CHECKSUM, None) if isinstance(values, dict) else None
        actual = digest_of(values)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} can't be read ({error}); remove the dataset and build it again.") from error
    if not isinstance(values, dict):
        raise DataError(f"{path} holds no manifest but a JSON {type(values).__name__}; build it again.")
    version = values.get("format")
    if version != FORMAT:
        known = str(version)[:20] if isinstance(version, int) else "unknown"
        raise DataError(f"{path} is of format {known}, this program reads {FORMAT}; build it again.")
    try:
        return kind.model_validate(values), checksum in (None, actual)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the top"
        raise DataError(f"{path} is damaged at {where} ({first['msg']}); build it again.") from error


def _too_large(path: str) -> DataError:
    return DataError(f"{path} has more than the {LIMIT_BYTES:,} bytes of the largest manifest; build it again.")


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
