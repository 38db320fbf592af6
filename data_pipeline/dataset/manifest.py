"""manifest.json: what a dataset directory holds, where each span of tokens lies, and digests that prove it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
from pydantic import AliasChoices, Field, model_validator

from data_pipeline.common.hashing import digest_of
from data_pipeline.dataset.records import (
    FORMAT,
    Name,
    StrictRecord,
    parse_record,
    plain_name,
    record_bytes,
    save_record,
)
from data_pipeline.errors import DataError

MANIFEST = "manifest.json"
SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)
_MOST_BYTES, _MOST_TOKENS = 2**50, 2**50  # sums of them stay far within 64 bits
_BLOCK_BYTES = 512  # that a tar is made of

Bytes = Annotated[int, Field(ge=0, le=_MOST_BYTES)]
Count = Annotated[int, Field(ge=0, le=_MOST_TOKENS)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


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
            plain_name(small.file)
        for name in SPLITS:
            if name not in self.splits or not self.splits[name].tokens:
                raise ValueError(f"there are no tokens of the {name} split")
        if self.tokenizer.end_of_text >= self.tokenizer.vocabulary:
            raise ValueError("the end of text is no token of the vocabulary")
        return self


def stream_identity(tokenizer: str, dtype: str, splits: dict[SplitName, Split]) -> str:
    """Digest of the tokenizer's identity and of the shards of every split, in order."""
    shards = {name: [shard.sha256 for shard in splits[name].shards] for name in SPLITS if name in splits}
    return digest_of({"tokenizer": tokenizer, "dtype": dtype, "shards": shards})
