"""Settings of `pretrain data build`. Frozen once loaded; an unknown key is an error."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from data_pipeline.config import FilePath, PathText, ReadingConfig, StrictSettings, TokenizerConfig
from data_pipeline.steps.base import Step
from data_pipeline.steps.registry import make_step


class SourceConfig(StrictSettings):
    """One source of a mix, which becomes a separate dataset."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="name of the source and of its dataset's folder"
    )
    input: PathText | list[PathText] = Field(description="file, directory, glob, or a list of them: see `input`")
    validation_input: PathText | list[PathText] | None = Field(
        default=None, description="files of this source's validation split: see `validation_input`"
    )
    weight: float = Field(
        default=1.0, gt=0, description="relative share of a run's samples and of the tokenizer's training text"
    )


class BuildConfig(ReadingConfig):
    """Text files -> a dataset, or several sources -> a mix of datasets with one tokenizer."""

    input: PathText | list[PathText] | None = Field(
        default=None,
        description="file, directory, glob, or a list of them: .txt .jsonl .xml (MediaWiki) .parquet .wet; all but "
        ".parquet also compressed as .gz .bz2 .xz .zst",
    )
    validation_input: PathText | list[PathText] | None = Field(
        default=None,
        description="files of the validation split, given as for `input`. They are excluded from `input`, and "
        "validation_fraction is then ignored",
    )
    sources: list[SourceConfig] = Field(
        default=[], description="several sources instead of `input`; each becomes a dataset in a folder of `output`"
    )
    output: FilePath = Field(description="directory to create; appears only when the build is complete")
    steps: list[SerializeAsAny[Step]] = Field(
        default=[],
        description="steps that clean the documents, in order: names or {name: ..., settings} (docs/data.md)",
    )
    tokenizer: TokenizerConfig = Field(default=TokenizerConfig(), description="tokenizer to train or to use")
    validation_fraction: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="fraction of documents to hold out, chosen by the hash of their text (at least one document is)",
    )
    executor: Literal["processes", "folder", "ray"] = Field(
        default="processes",
        description="where tasks run: processes of this command; folder: processes of several equal commands, as "
        "started by `pretrain launch build`; ray: a Ray cluster. The dataset does not depend on it",
    )
    ray_address: str | None = Field(
        default=None,
        pattern=r"^(auto|local|[^\s/:]+:\d{1,5}|\[[^\s/\]]+\]:\d{1,5})$",
        description="address of the Ray cluster: HOST:PORT, or auto (the cluster of this machine). Default: "
        "RAY_ADDRESS, or else a local cluster on this machine for the duration of the build",
    )
    workers: int | None = Field(
        default=None,
        gt=0,
        description="number of processes, or of concurrent tasks on a Ray cluster; default: one per core. The dataset "
        "does not depend on it",
    )
    piece_bytes: int | None = Field(
        default=None,
        gt=0,
        description="size in bytes of the pieces that larger and compressed input files are split into for parallel "
        "work; default: a 64th of the input, between 1 and 32 MiB. The dataset does not depend on it",
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
        if not isinstance(given, list):
            return given
        steps = [make_step(one) for one in given]
        return [step.following(steps[:number]) for number, step in enumerate(steps)]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.input is None) == (not self.sources):
            raise ValueError("set exactly one of input and sources")
        if self.sources and self.validation_input is not None:
            raise ValueError("with sources, set validation_input in each source that has validation files")
        if self.ray_address is not None and self.executor != "ray":
            raise ValueError("ray_address requires executor: ray")
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"two sources have the same name: {', '.join(names)}")
        for step in self.steps:
            if self.pair_fields and not step.takes_pairs:
                raise ValueError(f"the step {step.title} does not support pairs: remove the step or pair_fields")
            for name in step.sources():
                if name not in names:
                    raise ValueError(f"the step {step.title} names {name!r}, which is none of the sources {names}")
        return self

    @property
    def resolved_sources(self) -> list[SourceConfig]:
        """The sources; with `input`, a single one with an empty name."""
        if self.sources:
            return list(self.sources)
        assert self.input is not None
        return [SourceConfig.model_construct(name="", input=self.input, validation_input=self.validation_input)]
