"""manifest.json: the contents of a dataset directory, the position of each span of tokens, and their digests.

In format 1 it lists each member of the shards, up to `LISTED_MEMBERS`. In format 2 a separate file, `SHARDS`, holds
them as columns: it has no practical limit and opens in a second at 100,000 shards.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from pydantic import AliasChoices, ConfigDict, Field, ValidationError, model_validator

from data_pipeline.common.hashing import digest_of, file_sha256
from data_pipeline.common.problems import first_problem
from data_pipeline.dataset.records import (
    FORMAT,
    Name,
    StrictRecord,
    parse_record,
    plain_name,
    record_bytes,
    save_record,
)
from data_pipeline.dataset.shard import Bytes, Count, Sha256, Shard
from data_pipeline.dataset.shard_table import ShardTable, load_tables, save_tables
from data_pipeline.errors import DataError

MANIFEST, SHARDS = "manifest.json", "shards.table"
SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)
LISTED_MEMBERS = 2**15
"""Largest number of members of shards in a manifest of format 1."""


class Split(StrictRecord):
    """One split's stream of tokens, in the order of its shards; every document ends with an end of text, and begins
    with a begin of text where `DatasetManifest.begin_of_text` is set."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    documents: Count
    tokens: Count = Field(description="tokens, begins and ends of text included")
    text_bytes: Count = Field(description="bytes of the documents in UTF-8")
    words: Count = Field(description="words of the documents, split at white space")
    characters: Count | None = Field(default=None, description="code points of the documents; absent: not counted")
    unicode_words: Count | None = Field(
        default=None,
        description="words of the documents in the writing of any language (data_pipeline/text/words.py); absent: not "
        "counted",
    )
    copies: Count | None = Field(
        default=None,
        description="documents whose text an earlier one has, which lie anywhere; absent: they lie side by side, and "
        "were not counted",
    )
    shards: ShardTable | tuple[Shard, ...]

    @model_validator(mode="after")
    def _sums_up(self) -> Self:
        _, documents, tokens = ShardTable.of(self.shards).sizes.sum(axis=1).tolist()
        for name, found in (("documents", documents), ("tokens", tokens)):
            if getattr(self, name) != found:
                raise ValueError(f"it has another number of {name} than the sum of its shards")
        return self


class TokenizerRecord(StrictRecord):
    """The tokenizer's file and properties."""

    file: Name
    sha256: Sha256
    identity: str = Field(description="digest of all that token ids depend on")
    library: str = Field(
        default="sentencepiece", description="library that encoded: sentencepiece, tokenizers or bytes"
    )
    # Older manifests name the version after the only library of then.
    version: str = Field(
        validation_alias=AliasChoices("version", "sentencepiece"), description="version of the library"
    )
    vocabulary: int = Field(gt=0, le=2**32)
    end_of_text: int = Field(ge=0)


class FileRecord(StrictRecord):
    """A file by its content."""

    file: str
    bytes: Bytes
    sha256: Sha256


class BuildRecord(StrictRecord):
    """Record of the config and the inputs that the dataset was built from. `identity` is the digest of everything that
    its content depends on."""

    identity: str
    config: dict[str, Any]
    source: str = ""
    """Name of the config's source that this is; empty when it has one input."""
    inputs: tuple[FileRecord, ...]
    validation_inputs: tuple[FileRecord, ...] = ()


class DatasetManifest(StrictRecord):
    """Everything about a dataset except its tokens."""

    format: Literal[1, 2] = FORMAT
    identity: str = Field(description="digest of tokenizer and tokens: equal exactly when the streams are equal")
    dtype: Literal["uint16", "uint32"]
    tokenizer: TokenizerRecord
    unigram: FileRecord = Field(description="int64 [vocabulary] counts of each token in the training split, as .npy")
    splits: dict[SplitName, Split]
    build: BuildRecord
    report: FileRecord | None = Field(
        default=None, description="what the steps of the build saw, kept and dropped, as .json"
    )
    shards: FileRecord | None = Field(default=None, description="format 2: where the shards of the splits are listed")
    pairs: bool = Field(default=False, description="each document is two texts, both followed by an end of text")
    begin_of_text: int | None = Field(
        default=None, ge=0, description="the token that each document begins with; absent: documents have none"
    )

    @property
    def small_files(self) -> tuple[TokenizerRecord | FileRecord, ...]:
        """All but the shards."""
        return (self.tokenizer, self.unigram, *(one for one in (self.report, self.shards) if one is not None))

    @property
    def boundary_tokens(self) -> list[int]:
        """The tokens that documents begin and end with."""
        return [self.tokenizer.end_of_text] + ([] if self.begin_of_text is None else [self.begin_of_text])

    @property
    def itemsize(self) -> int:
        """Bytes of a token."""
        return np.dtype(self.dtype).itemsize

    def listed_apart(self, directory: Path) -> DatasetManifest:
        """A copy in format 1, or in format 2 if it has many members; then this writes `SHARDS` in `directory`."""
        tables = [ShardTable.of(self.splits[name].shards) for name in SPLITS]
        if sum(len(table.offsets) for table in tables) <= LISTED_MEMBERS:
            listed = {name: self.splits[name].model_copy(update={"shards": tuple(self.splits[name].shards)})
                      for name in SPLITS}  # fmt: skip
            return self.model_copy(update={"splits": listed})
        save_tables(directory / SHARDS, tables)
        record = FileRecord(
            file=SHARDS, bytes=(directory / SHARDS).stat().st_size, sha256=file_sha256(directory / SHARDS)
        )
        splits = {name: self.splits[name].model_copy(update={"shards": table})
                  for name, table in zip(SPLITS, tables, strict=True)}  # fmt: skip
        return self.model_copy(update={"format": 2, "shards": record, "splits": splits})

    def save(self, directory: Path) -> None:
        """Write manifest.json, the same bytes for the same content."""
        apart = {"splits": {"__all__": {"shards"}}} if self.format == 2 else {"shards"}
        values = self.model_dump(exclude=apart)
        if self.begin_of_text is None:  # a dataset without one has the manifest that it always had
            del values["begin_of_text"]
        for split in values["splits"].values():
            for name in ("characters", "unicode_words", "copies"):  # what earlier versions did not count
                if split[name] is None:
                    del split[name]
        save_record(values, directory / MANIFEST)

    @classmethod
    def load(cls, directory: Path) -> DatasetManifest:
        """Read and check manifest.json. Raises DataError when it is missing, damaged or of another format."""
        path = directory / MANIFEST
        return cls.parse(record_bytes(path), str(path), lambda record: directory / record.file)

    @classmethod
    def parse(cls, content: bytes, path: str, fetched: Callable[[FileRecord], Path]) -> DatasetManifest:
        """Check the bytes of a manifest.json, which errors call `path`; `fetched` says where a file beside it can be
        read. Raises DataError as `load` does."""
        manifest, intact = parse_record(cls, content, path, (1, 2), lambda values: _complete(values, path, fetched))
        tables = {name: ShardTable.of(split.shards) for name, split in manifest.splits.items()}
        if manifest.identity != stream_identity(manifest.tokenizer.identity, manifest.dtype, manifest.splits):
            raise DataError(f"{path} was changed by hand: its identity isn't that of its shards; build it again.")
        for table in tables.values():
            if (name := table.misplaced(manifest.itemsize)) is not None:
                raise DataError(f"{path} places tokens outside {name}, or over others; build it again.")
        if not intact:
            raise DataError(f"{path} was changed by hand: its checksum isn't that of its content; build it again.")
        return manifest

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for small in self.small_files:
            plain_name(small.file)
        for name in SPLITS:
            if name not in self.splits or not self.splits[name].tokens:
                raise ValueError(f"there are no tokens of the {name} split")
        if self.tokenizer.end_of_text >= self.tokenizer.vocabulary:
            raise ValueError("the end of text is no token of the vocabulary")
        if self.begin_of_text is not None and self.begin_of_text >= self.tokenizer.vocabulary:
            raise ValueError("the begin of text is no token of the vocabulary")
        return self


def stream_identity(tokenizer: str, dtype: str, splits: dict[SplitName, Split]) -> str:
    """Digest of the tokenizer's identity and of the shards of every split, in order."""
    shards = {
        name: [row.tobytes().hex() for row in ShardTable.of(splits[name].shards).sha256]
        for name in SPLITS
        if name in splits
    }
    return digest_of({"tokenizer": tokenizer, "dtype": dtype, "shards": shards})


def _complete(values: dict[str, Any], path: str, fetched: Callable[[FileRecord], Path]) -> None:
    """Adds the shards of a manifest of format 2 to its `values`. Raises DataError when their file does not match."""
    if values.get("format") != 2:
        return
    splits = values.get("splits")
    try:
        record = FileRecord.model_validate(values.get("shards"))
        plain_name(record.file)
        if not isinstance(splits, dict) or set(splits) != set(SPLITS):
            raise ValueError("it has other splits than a dataset")
        where = fetched(record)
        if where.stat().st_size != record.bytes or file_sha256(where) != record.sha256:
            raise ValueError(f"{record.file} is not the file that it was written with")
        for name, table in zip(SPLITS, load_tables(where, len(SPLITS)), strict=True):
            splits[name]["shards"] = table
    except (ValidationError, ValueError, TypeError, OSError) as error:
        problem = first_problem(error) if isinstance(error, ValidationError) else error
        raise DataError(
            f"{path} lists its shards in a file that can't be used ({problem}); copy it again, or build it again."
        ) from error
