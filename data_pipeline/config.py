"""Settings of reading and of tokenizers. Frozen once loaded; an unknown key is an error."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

MAX_INTEGER = 2**53
"""Largest integer of a config: up to here floats, JSON and YAML represent every integer exactly."""
MAX_TEXT_LENGTH = 4096
"""Longest string of a config, such as a path, in characters."""
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")  # impossible in file names and in UTF-8


def expand_user(path: Any) -> Any:
    """The path with `~` expanded, which shells do not do in `key=~/text`."""
    return type(path)(os.path.expanduser(path))


PathText = Annotated[str, Field(min_length=1), AfterValidator(expand_user)]
"""A path or an address, as a string."""
FilePath = Annotated[Path, AfterValidator(expand_user)]


class StrictSettings(BaseModel):
    """Base of all settings: frozen, unknown keys refused, values within sensible bounds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _numbers_are_numbers(cls, given: Any) -> Any:
        """Refuses booleans where a number is expected, since Python takes true for 1."""
        for name, field in cls.model_fields.items() if isinstance(given, dict) else ():
            if not any(isinstance(one, bool) for one in _values(given.get(name))):
                continue  # before the annotation, which takes longer to look through
            kinds = _leaves(field.annotation)
            if bool not in kinds and kinds & {int, float}:
                problem = PydanticCustomError("number", "expected a number, not true or false")
                details = InitErrorDetails(type=problem, loc=(name,), input=given[name])
                raise ValidationError.from_exception_data(cls.__name__, [details])
        return given

    @field_validator("*", mode="after")
    @classmethod
    def _values_have_bounds(cls, value: Any) -> Any:
        for one in _values(value):
            if isinstance(one, int) and abs(one) > MAX_INTEGER:
                raise PydanticCustomError("bound", f"must be at most {MAX_INTEGER:,}")
            if isinstance(one, str) and (len(one) > MAX_TEXT_LENGTH or _UNWRITABLE.search(one)):
                raise PydanticCustomError("text", f"expected text of at most {MAX_TEXT_LENGTH:,} characters")
        return value


def _leaves(annotation: Any) -> set[Any]:
    """The plain types in an annotation: str, float and None for `dict[str, float] | None`."""
    inner = get_args(annotation)
    if not inner:
        return {annotation if isinstance(annotation, type) else type(annotation)}  # the latter: values of a Literal
    return {leaf for argument in inner for leaf in _leaves(argument)}


def _values(value: Any) -> Iterator[Any]:
    """The plain values in a field's value. Nested settings validate their own."""
    if isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _values(one)
    else:
        yield value


_UNTRAINED = {"bytes": "259", "characters": "1,114,112"}
"""ids of kinds of tokenizers that need no training"""


class TokenizerConfig(StrictSettings):
    """Tokenizer to use: one trained on the input, or an existing one."""

    type: Literal["bpe", "unigram", "wordpiece", "byte_bpe", "bytes", "characters"] = Field(
        default="bpe",
        description="kind to train: bpe or unigram (sentencepiece), wordpiece (BERT's) or byte_bpe "
        "(GPT-2's and RoBERTa's); or bytes (ByT5's 259 ids) or characters (CANINE's code points), which need no "
        "training",
    )
    vocabulary: int = Field(
        default=8192,
        gt=257,
        description="vocabulary size, including 256 bytes and the special tokens; not for type=bytes or characters",
    )
    training_bytes: int = Field(
        default=32 * 2**20,
        gt=0,
        description="bytes of UTF-8 text to train on; a larger input is sampled by document hash",
    )
    specials: Literal["bert", "t5"] | None = Field(
        default=None,
        description="special tokens of a trained bpe or unigram besides <|endoftext|>: bert ([PAD] [CLS] [SEP] "
        "[MASK]), t5 (<pad> </s>), or none by default; an objective appends those that the tokenizer lacks",
    )
    lowercase: bool | None = Field(
        default=None,
        description="whether a trained wordpiece puts text into lower case, as BERT's uncased does; default: true",
    )
    strip_accents: bool | None = Field(
        default=None,
        description="whether a trained wordpiece takes marks off letters (schön becomes schon, ガ カ); default: as "
        "lowercase, and false where that changes more than 1% of the training sample's words, whose marks are letters",
    )
    unknown_limit: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="share of a source's tokens that may be unknown to the tokenizer ([UNK]); a build with more is "
        "refused",
    )
    path: FilePath | None = Field(
        default=None,
        description="an existing tokenizer: a sentencepiece .model, tokenizer.json, BERT vocab.txt or GPT-2's "
        "encoder.json (or vocab.json; its vocab.bpe or merges.txt beside it), or a folder with one; files that were "
        "released beside it are read too; type, vocabulary, training_bytes and specials are then ignored",
    )
    end_of_text: str | None = Field(
        default=None,
        min_length=1,
        description="name of the special piece after each document, such as <|end_of_text|>; default: the one that the "
        "tokenizer and the files beside it give",
    )
    begin_of_text: str | None = Field(
        default=None,
        min_length=1,
        description="name of the special piece before each document, such as <s>, or off; default: the one that the "
        "tokenizer and the files beside it add to a text",
    )

    @property
    def trains(self) -> bool:
        """Whether a tokenizer is trained on the input."""
        return self.path is None and self.type not in _UNTRAINED

    @model_validator(mode="after")
    def _specials_are_sentencepiece_s(self) -> Self:
        if self.specials and self.type not in ("bpe", "unigram"):
            raise ValueError(
                f"specials={self.specials} is for bpe and unigram; {self.type} has its own specials: remove the key"
            )
        return self

    @model_validator(mode="after")
    def _case_is_wordpiece_s(self) -> Self:
        for name in ("lowercase", "strip_accents"):
            if getattr(self, name) is None or (self.path is None and self.type == "wordpiece"):
                continue
            whose = f"type={self.type} keeps case and marks" if self.path is None else "path has settings of its own"
            raise ValueError(f"{name} is for a trained wordpiece, and {whose}: remove the key, or set type=wordpiece")
        return self

    @model_validator(mode="after")
    def _untrained_have_their_ids(self) -> Self:
        if self.type in _UNTRAINED and self.path is None and (self.end_of_text or self.begin_of_text):
            raise ValueError(f"end_of_text and begin_of_text do not apply to {self.type}: remove the keys")
        if self.type in _UNTRAINED and self.vocabulary != TokenizerConfig.model_fields["vocabulary"].default:
            raise ValueError(
                f"vocabulary={self.vocabulary} does not apply to {self.type}, which has {_UNTRAINED[self.type]} ids: "
                "remove the key"
            )
        return self


class ReadingConfig(StrictSettings):
    """Settings by which files become documents."""

    text_field: str = Field(
        default="text", description="key of the text in each line of a .jsonl file, or column of a .parquet file"
    )
    max_bad_fraction: float = Field(
        default=0,
        ge=0,
        lt=1,
        description="fraction of a file's lines, records or rows that may be malformed (not UTF-8, not JSON, without "
        "text, too long): they are skipped and counted. More than that is an error; at 0, any malformed one is",
    )
    max_document_bytes: int = Field(
        default=64 * 2**20,
        gt=0,
        description="bytes above which a line, record or row is malformed; also bounds the memory for reading a file",
    )
    pair_fields: tuple[str, str] | None = Field(
        default=None,
        description="keys of the two texts in each line (.jsonl) or row (.parquet), such as [source, target]: builds a "
        "dataset for the objectives pairs and tlm",
    )
    txt_documents: Literal["passages", "file", "paragraph", "line"] = Field(
        default="passages",
        description="how a .txt file is split into documents: passages (groups of paragraphs of about "
        "txt_passage_characters; a short file is one), file, paragraph (ended by a blank line) or line",
    )
    txt_passage_characters: int = Field(
        default=16 * 2**10, gt=0, description="characters after which a passage ends at the next blank line"
    )
