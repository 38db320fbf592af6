"""The keys of a file of `files`: where the files of a published data set are, under which terms, and what is written
from them. See docs/finetune.md, "Add a set"."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import ArgsKwargs

from pretrain.config.section import NameIn, Section, as_mapping
from pretrain.finetune.sets.readers import READERS, Row
from pretrain.finetune.sets.row_filters import ROW_FILTERS

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""A sha256, in hexadecimal."""


class Repository(Section):
    """A GitHub repository at a commit."""

    name: Literal["github"] = "github"
    repository: str = Field(pattern="^[^/]+/[^/]+$", description="OWNER/NAME")
    commit: str = Field(pattern="^[0-9a-f]{40}$", description="commit, in full")

    def file(self, path: str, sha256: str) -> "SourceFile":
        """The file with this path."""
        url = f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{path}"
        return SourceFile(path=path, sha256=sha256, url=url)


class Archive(Section):
    """A package that holds files of a set."""

    name: Literal["package"] = "package"
    url: str = Field(description="address")
    sha256: Digest = Field(description="digest of the package")

    @property
    def file_name(self) -> str:
        """File name."""
        return PurePosixPath(self.url).name

    def file(self, path: str, sha256: str) -> "SourceFile":
        """The file with this path."""
        return SourceFile(path=path, sha256=sha256, url=self.url, archive=self)


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One published file, pinned by its digest."""

    path: str
    """in its repository or archive"""
    sha256: str
    url: str
    """address of the file, or of its archive"""
    archive: Archive | None = None

    @property
    def name(self) -> str:
        """File name."""
        return PurePosixPath(self.path).name


class PublishedSplit(Section):
    """Source files and rows that `train.jsonl`, `validation.jsonl` or `test.jsonl` is made from."""

    rows: int = Field(gt=0, description="number of rows that are written")
    keep: Annotated[str, NameIn(ROW_FILTERS)] = Field("all", description="which rows of the files are in the split")
    files: dict[str, Digest] = Field(min_length=1, description="path in the source -> sha256, in the order of the rows")


class RowReader(Section):
    """A function of `readers.py` that gives the rows of one file. Its name alone is short for one without options."""

    name: Annotated[str, NameIn(READERS)] = Field(description="name of the function")
    options: dict[str, Any] = Field({}, description="its keyword arguments")

    @model_validator(mode="after")
    def _takes_the_options(self) -> "RowReader":
        reader: Any = READERS[self.name]
        try:  # a generator function, so that nothing is read yet
            TypeAdapter(reader).validate_python(ArgsKwargs((b"",), self.options), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"reader {self.name}: {first['loc'][0]}: {first['msg']}") from None
        return self


class PublishedSet(Section):
    """One data set, written in the fields of an objective."""

    title: str = Field(description="name, and what the set is about")
    objective: str = Field(description="objective that trains on the rows")
    source: Repository | Archive = Field(discriminator="name", description="repository or package that has the files")
    splits: dict[Literal["train", "validation", "test"], PublishedSplit] = Field(description="the files to write")
    reader: Annotated[RowReader, BeforeValidator(as_mapping)] = Field(description="what reads the rows of a file")
    labels: tuple[str, ...] = Field(
        (), description="class or tag names, in order of their ids; empty where the objective has none"
    )
    settings: dict[str, str | int] = Field(
        {}, description="settings of the objective, without those that have its default"
    )
    terms: str = Field(description="licence or terms of use, as its owners state them")
    reference: str = Field(description="who made it")
    note: str = Field("", description="difference from the set as others know it")

    @property
    def files(self) -> list[SourceFile]:
        """Every file that is needed, each once."""
        return list(dict.fromkeys(file for split in self.splits.values() for file in self.files_of(split)))

    def files_of(self, split: PublishedSplit) -> list[SourceFile]:
        """Files of a split, in the order of its rows."""
        return [self.source.file(path, sha256) for path, sha256 in split.files.items()]

    def read(self, content: bytes) -> Iterator[Row]:
        """Rows of one file."""
        return READERS[self.reader.name](content, **self.reader.options)


class Variants(Section):
    """Sets of one file that differ in a few values, such as languages."""

    variants: dict[str, dict[str, str]] = Field(description="name of the set -> value for each `$name` in the file")
