"""What `pretrain data build` can be told. Frozen once loaded; an unknown key is an error."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from data_pipeline.config import FilePath, PathText, ReadingConfig, StrictSettings, TokenizerConfig
from data_pipeline.steps.base import Step
from data_pipeline.steps.registry import make_step


class SourceConfig(StrictSettings):
    """Input that becomes a dataset of its own among others."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="of the source, and of its dataset's folder")
    input: PathText | list[PathText] = Field(description="as BuildConfig.input")
    validation_input: PathText | list[PathText] | None = Field(
        default=None, description="as BuildConfig.validation_input"
    )
    weight: float = Field(
        default=1.0, gt=0, description="share of a run's samples, and of the tokenizer's training text"
    )


class BuildConfig(ReadingConfig):
    """Text files -> a dataset, or several sources -> a mix of datasets with one tokenizer."""

    input: PathText | list[PathText] | None = Field(
        default=None,
        description="file, directory, glob, or a list of them: .txt .jsonl .xml (MediaWiki), also as .gz .bz2 .zst",
    )
    validation_input: PathText | list[PathText] | None = Field(
        default=None,
        description="files that make the validation split, all of them, as `input` names files; `input` leaves them "
        "out, and validation_fraction then says nothing",
    )
    sources: list[SourceConfig] = Field(
        default=[], description="instead of input: several, each a dataset in a folder of `output` by its name"
    )
    output: FilePath = Field(description="directory to create; appears only once it is whole")
    steps: list[SerializeAsAny[Step]] = Field(
        default=[],
        description="what is done with documents, in this order: names or {name: ..., settings} (docs/data.md)",
    )
    tokenizer: TokenizerConfig = Field(default=TokenizerConfig(), description="how text becomes token ids")
    validation_fraction: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="share of documents, chosen by the hash of their text, held out (at least one is)",
    )
    executor: Literal["processes", "folder", "ray"] = Field(
        default="processes",
        description="who does the work: processes of this command; folder: those of many equal commands, as "
        "`pretrain launch build` starts them; a Ray cluster. The dataset is the same with any",
    )
    ray_address: str | None = Field(
        default=None,
        pattern=r"^(auto|local|[^\s/:]+:\d{1,5}|\[[^\s/\]]+\]:\d{1,5})$",
        description="of the Ray cluster: HOST:PORT, or auto (the one that this machine is in); absent: RAY_ADDRESS, or "
        "else a cluster of this machine alone (local) for as long as the build takes",
    )
    workers: int | None = Field(
        default=None,
        gt=0,
        description="processes, or tasks at a time on a Ray cluster; absent: one for each core. The dataset "
        "is the same with any number",
    )
    piece_bytes: int | None = Field(
        default=None,
        gt=0,
        description="larger and compressed input files are cut into pieces of so many bytes of text, which processes "
        "share; absent: a 64th of the input, from 1 to 32 MiB. The dataset is the same with any size",
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
        if self.ray_address is not None and self.executor != "ray":
            raise ValueError("ray_address is for executor: ray")
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"two sources have one name: {', '.join(names)}")
        for step in self.steps:
            if self.pair_fields and not step.takes_pairs:
                raise ValueError(f"the step {step.title} is not for pairs: leave it out, or pair_fields")
            for name in step.sources():
                if name not in names:
                    raise ValueError(f"the step {step.title} names {name!r}, which is none of the sources {names}")
        return self

    @property
    def resolved_sources(self) -> list[SourceConfig]:
        """With `input`, the only one, whose name is empty."""
        if self.sources:
            return list(self.sources)
        assert self.input is not None
        return [SourceConfig.model_construct(name="", input=self.input, validation_input=self.validation_input)]
