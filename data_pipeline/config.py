"""What `pretrain data build` can be told. Frozen once loaded; an unknown key is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator, model_validator

from data_pipeline.steps.base import Step
from data_pipeline.steps.registry import make_step


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TokenizerConfig(_Config):
    """Which tokenizer: one trained on the input, or a given one."""

    type: Literal["bpe", "unigram", "wordpiece", "byte_bpe"] = Field(
        default="bpe",
        description="what to train: bpe or unigram (sentencepiece), wordpiece (BERT's, lower case) or byte_bpe (that "
        "of GPT-2 and RoBERTa)",
    )
    vocabulary: int = Field(default=8192, gt=257, description="pieces, including 256 bytes and the special ones")
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
    path: Path | None = Field(
        default=None,
        description="a sentencepiece .model, tokenizer.json or BERT vocab.txt to use as it is; the other settings then "
        "say nothing",
    )

    @property
    def trains(self) -> bool:
        """Whether a tokenizer is trained on the input."""
        return self.path is None

    @model_validator(mode="after")
    def _specials_are_sentencepiece_s(self) -> Self:
        if self.specials and self.type not in ("bpe", "unigram"):
            raise ValueError(f"specials={self.specials} is for bpe and unigram; {self.type} has its own: leave it out")
        return self


class Objective(_Config):
    """What samples are made of a dataset, and what is asked about them: `recipes/`. Part of a run's config."""

    name: Literal[
        "causal",
        "masked",
        "span_corruption",
        "bert_style",
        "mass_style",
        "drop",
        "prefix_lm",
        "deshuffling",
        "denoising",
        "pairs",
    ] = Field(
        default="causal",
        description="causal: the next token (GPT). masked: masked tokens (BERT, RoBERTa). To a target: span_corruption "
        "(T5), bert_style, mass_style, drop, prefix_lm, deshuffling (its study's others), denoising (BART), pairs (a "
        "dataset of sources and targets)",
    )
    noise_density: float = Field(default=0.15, gt=0, lt=1, description="part of the tokens that is corrupted")
    mean_span: float = Field(default=3.0, ge=1, description="mean tokens of a corrupted span; of denoising: Poisson's")
    sentinels: int = Field(default=100, gt=0, description="ids that stand for a span each (span_corruption)")
    whole_words: bool = Field(default=False, description="choose words to mask, not tokens (masked)")
    next_sentence: bool = Field(
        default=False,
        description="make each sample of two segments of one document or, half the time, of two, and ask (masked)",
    )
    short_fraction: float = Field(
        default=0.1, ge=0, le=1, description="part of the samples cut to a random length (with next_sentence)"
    )
    noise: list[
        Literal["token_masking", "token_deletion", "text_infilling", "sentence_permutation", "document_rotation"]
    ] = Field(
        default=["text_infilling", "sentence_permutation"],
        min_length=1,
        description="what denoising does to a text, one after the other",
    )

    def settings(self) -> dict[str, Any]:
        """What samples depend on, as plain values; not what a run's config adds about judging answers."""
        return self.model_dump(mode="json", exclude_defaults=True, include=set(Objective.model_fields))


class SourceConfig(_Config):
    """Input that becomes a dataset of its own among others."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="of the source, and of its dataset's folder")
    input: str | list[str] = Field(description="as BuildConfig.input")
    validation_input: str | list[str] | None = Field(default=None, description="as BuildConfig.validation_input")
    weight: float = Field(
        default=1.0, gt=0, description="share of a run's samples, and of the tokenizer's training text"
    )


class BuildConfig(_Config):
    """Text files -> a dataset, or several sources -> a mix of datasets with one tokenizer."""

    input: str | list[str] | None = Field(
        default=None,
        description="file, directory, glob, or a list of them: .txt .jsonl .xml (MediaWiki), also as .gz .bz2 .zst",
    )
    validation_input: str | list[str] | None = Field(
        default=None,
        description="files that make the validation split, all of them, as `input` names files; `input` leaves them "
        "out, and validation_fraction then says nothing",
    )
    sources: list[SourceConfig] = Field(
        default=[], description="instead of input: several, each a dataset in a folder of `output` by its name"
    )
    output: Path = Field(description="directory to create; appears only once it is whole")
    steps: list[SerializeAsAny[Step]] = Field(
        default=[],
        description="what is done with documents, in this order: names or {name: ..., settings} (docs/data.md)",
    )
    text_field: str = Field(default="text", description="key of the text in each line of a .jsonl file")
    pair_fields: tuple[str, str] | None = Field(
        default=None,
        description="keys of the two texts in each line of a .jsonl file, such as [source, target]: a dataset for the "
        "objective `pairs`",
    )
    txt_documents: Literal["passages", "file", "paragraph", "line"] = Field(
        default="passages",
        description="what one document is in a .txt file: passages (the whole file when short, else runs of paragraphs "
        "of about txt_passage_characters), file, paragraph (ended by a blank line) or line",
    )
    txt_passage_characters: int = Field(
        default=16 * 2**10, gt=0, description="characters after which a passage ends at the next blank line"
    )
    tokenizer: TokenizerConfig = Field(default=TokenizerConfig(), description="how text becomes token ids")
    validation_fraction: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="share of documents, chosen by the hash of their text, held out (at least one is)",
    )
    workers: int | None = Field(
        default=None, gt=0, description="processes; absent: one for each core. The dataset is the same with any number"
    )
    piece_bytes: int = Field(
        default=2**26,
        gt=0,
        description="larger input files are cut into pieces of so many bytes of text, that processes can share; the "
        "dataset is the same with any size",
    )
    member_tokens: int = Field(
        default=2**20, gt=0, description="tokens after which a tar member ends, at the end of a document"
    )
    shard_tokens: int = Field(
        default=2**27, gt=0, description="tokens after which a shard ends, at the end of a member"
    )

    @field_validator("steps", mode="before")
    @classmethod
    def _steps_by_name(cls, given: Any) -> Any:
        return [make_step(one) for one in given] if isinstance(given, list) else given

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.input is None) == (not self.sources):
            raise ValueError("set exactly one of input and sources")
        if self.sources and self.validation_input is not None:
            raise ValueError("with sources, give validation_input to each source that has some")
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"two sources have one name: {', '.join(names)}")
        for step in self.steps:
            if self.pair_fields and not step.takes_pairs:
                raise ValueError(f"the step {step.title} is not for pairs: leave it out, or pair_fields")
            for name in step.only or []:
                if name not in names:
                    raise ValueError(
                        f"the step {step.title} is only for {name!r}, which is none of the sources {names}"
                    )
        return self

    @property
    def resolved_sources(self) -> list[SourceConfig]:
        """With `input`, the only one, whose name is empty."""
        if self.sources:
            return list(self.sources)
        assert self.input is not None
        return [SourceConfig.model_construct(name="", input=self.input, validation_input=self.validation_input)]
