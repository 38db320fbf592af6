"""What reading and tokenizers can be told. Frozen once loaded; an unknown key is an error."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

MAX_INTEGER = 2**53
"""of whole numbers: up to here floats, JSON and YAML hold each exactly"""
MAX_TEXT_LENGTH = 4096
"""characters of a text, as of a path"""
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")  # that no file name and no UTF-8 can have


def expand_user(path: Any) -> Any:
    """A path with the home directory in place of `~`, which shells leave as it is in `key=~/text`."""
    return type(path)(os.path.expanduser(path))


PathText = Annotated[str, Field(min_length=1), AfterValidator(expand_user)]
"""a path or an address, as text"""
FilePath = Annotated[Path, AfterValidator(expand_user)]


class StrictSettings(BaseModel):
    """Settings of any kind: frozen, without unknown keys, and of values that a person can have meant."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _numbers_are_numbers(cls, given: Any) -> Any:
        """Python takes true for 1."""
        for name, field in cls.model_fields.items() if isinstance(given, dict) else ():
            kinds = _leaves(field.annotation)
            if bool in kinds or not kinds & {int, float}:
                continue
            if any(isinstance(one, bool) for one in _values(given.get(name))):
                problem = PydanticCustomError("number", "Input should be a number, not true or false")
                found = InitErrorDetails(type=problem, loc=(name,), input=given[name])
                raise ValidationError.from_exception_data(cls.__name__, [found])
        return given

    @field_validator("*", mode="after")
    @classmethod
    def _values_have_bounds(cls, value: Any) -> Any:
        for one in _values(value):
            if isinstance(one, int) and abs(one) > MAX_INTEGER:
                raise PydanticCustomError("bound", f"Input should be at most {MAX_INTEGER:,}")
            if isinstance(one, str) and (len(one) > MAX_TEXT_LENGTH or _UNWRITABLE.search(one)):
                raise PydanticCustomError("text", f"Input should be text of at most {MAX_TEXT_LENGTH:,} characters")
        return value


def _leaves(annotation: Any) -> set[Any]:
    """The plain types in an annotation: of `dict[str, float] | None`, str, float and None."""
    inner = get_args(annotation)
    if not inner:
        return {annotation if isinstance(annotation, type) else type(annotation)}  # a value: of a Literal
    return {leaf for argument in inner for leaf in _leaves(argument)}


def _values(value: Any) -> Iterator[Any]:
    """The plain values in a field's value. Settings in it look at their own."""
    if isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _values(one)
    else:
        yield value


class TokenizerConfig(StrictSettings):
    """Which tokenizer: one trained on the input, or a given one."""

    type: Literal["bpe", "unigram", "wordpiece", "byte_bpe", "bytes"] = Field(
        default="bpe",
        description="what to train: bpe or unigram (sentencepiece), wordpiece (BERT's, lower case) or byte_bpe (that "
        "of GPT-2 and RoBERTa); or bytes (ByT5's 259 ids), which needs no training",
    )
    vocabulary: int = Field(
        default=8192, gt=257, description="pieces, including 256 bytes and the special ones; not for bytes"
    )
    training_bytes: int = Field(
        default=32 * 2**20,
        gt=0,
        description="bytes of UTF-8 text to train on; a larger input is sampled by document hash",
    )
    specials: Literal["bert", "t5"] | None = Field(
        default=None,
        description="what a trained bpe or unigram holds besides <|endoftext|>: bert ([PAD] [CLS] [SEP] [MASK]), t5 "
        "(<pad> </s>) or nothing; an objective appends what it needs and the tokenizer lacks",
    )
    path: FilePath | None = Field(
        default=None,
        description="a sentencepiece .model, tokenizer.json, BERT vocab.txt or GPT-2's encoder.json (or vocab.json; "
        "its vocab.bpe or merges.txt beside it) to use as it is, or a folder with one; the other settings then say "
        "nothing",
    )

    @property
    def trains(self) -> bool:
        """Whether a tokenizer is trained on the input."""
        return self.path is None and self.type != "bytes"

    @model_validator(mode="after")
    def _specials_are_sentencepiece_s(self) -> Self:
        if self.specials and self.type not in ("bpe", "unigram"):
            raise ValueError(f"specials={self.specials} is for bpe and unigram; {self.type} has its own: leave it out")
        return self

    @model_validator(mode="after")
    def _bytes_are_256(self) -> Self:
        if self.type == "bytes" and self.vocabulary != TokenizerConfig.model_fields["vocabulary"].default:
            raise ValueError(f"vocabulary={self.vocabulary} says nothing of bytes, which has 259 ids: leave it out")
        return self


class ReadingConfig(StrictSettings):
    """How files become documents."""

    text_field: str = Field(
        default="text", description="key of the text in each line of a .jsonl file; column of a .parquet file"
    )
    max_bad_fraction: float = Field(
        default=0,
        ge=0,
        lt=1,
        description="share of a file's lines, records or rows that may be malformed (not UTF-8, not JSON, without "
        "text, too long): they are left out and counted; more are an error, as any is at 0",
    )
    max_document_bytes: int = Field(
        default=64 * 2**20,
        gt=0,
        description="bytes above which a line, record or row is malformed; what is held of a file goes by it",
    )
    pair_fields: tuple[str, str] | None = Field(
        default=None,
        description="keys of the two texts in each line (.jsonl) or row (.parquet), such as [source, target]: a "
        "dataset for the objective `pairs`",
    )
    txt_documents: Literal["passages", "file", "paragraph", "line"] = Field(
        default="passages",
        description="what one document is in a .txt file: passages (the whole file when short, else runs of paragraphs "
        "of about txt_passage_characters), file, paragraph (ended by a blank line) or line",
    )
    txt_passage_characters: int = Field(
        default=16 * 2**10, gt=0, description="characters after which a passage ends at the next blank line"
    )
