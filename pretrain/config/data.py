"""`data`: datasets, their weights, and how they are read."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, model_validator

from data_pipeline.config import PathText
from data_pipeline.dataset.cache import DEFAULT_BYTES
from pretrain.config.objective import Objective
from pretrain.config.section import Section, named


class Source(Section):
    path: PathText = Field(
        description="directory that `pretrain data build` wrote, or the address of a copy: s3://, gs://, https://; for "
        "a labelled objective, a directory with train.jsonl and validation.jsonl"
    )
    name: str | None = Field(
        None, description="name of the source in phases and in the ledger; default: the last component of the path"
    )
    weight: float = Field(
        1.0, ge=0, description="share of samples, relative to the other sources (0: used in phases only)"
    )
    objective: Objective | None = Field(
        None,
        description="objective of this source, whose rows have the same columns and the same loss; default: the run's "
        "(T5: text beside tasks; XLM: masked beside tlm; UL2: several denoisers of one dataset)",
    )
    max_epochs: float | None = Field(
        None, gt=0, description="epochs of this source above which a run is refused; default: no limit"
    )

    @property
    def called(self) -> str:
        return self.name or Path(self.path).name


class WeightPhase(Section):
    """Other weights, from some point of the run on."""

    tokens: int = Field(gt=0, description="trained tokens after which the first full batch uses these weights")
    weights: dict[str, Annotated[float, Field(ge=0)]] = Field(
        description="weight of each source by its name; 0: the source is not read"
    )


class ProportionalMixing(Section):
    """Rates by size (T5's study, section 3.5.2)."""

    name: Literal["proportional"] = "proportional"
    cap: int | None = Field(None, gt=0, description="largest number of examples that a source counts for")


class TemperatureMixing(Section):
    """Rates by size to the power of 1 / `temperature`, which makes them more even."""

    name: Literal["temperature"] = "temperature"
    cap: int | None = Field(None, gt=0, description="largest number of examples that a source counts for")
    temperature: float = Field(gt=1, description="temperature: rates are sizes to the power of 1 / temperature")


class PowerMixing(Section):
    """Rates by size to the power of `alpha`, which makes them more even (XLM, section 3.1; XLM-R: 0.3)."""

    name: Literal["power"] = "power"
    cap: int | None = Field(None, gt=0, description="largest number of examples that a source counts for")
    alpha: float = Field(gt=0, lt=1, description="exponent: rates are sizes to the power of alpha")


class EqualMixing(Section):
    name: Literal["equal"] = "equal"


Mixing = Annotated[
    ProportionalMixing | TemperatureMixing | PowerMixing | EqualMixing, Discriminator("name"), BeforeValidator(named())
]


class Data(Section):
    path: PathText | None = Field(None, description="one dataset; shorthand for sources: [{path: ...}]")
    sources: list[Source] = Field([], description="datasets and their weights")
    mixing: Mixing | None = Field(
        None,
        description="rates computed from the numbers of samples of the sources, or of those of a mix in path, in "
        "place of weights",
    )
    tokenizer: PathText | None = Field(
        None,
        description="file of the tokenizer for labelled data, which holds text; default: that of the checkpoint in "
        "run.start_from; tokenized datasets have their own",
    )
    source_tokenizer: PathText | None = Field(
        None,
        description="file of the tokenizer of inputs for model.source_encoder; default: that of the checkpoint in "
        "run.start_from",
    )
    phases: list[WeightPhase] = Field(
        [], description="weights that change during the run, in order; each source continues where it was"
    )
    verify: bool = Field(
        True,
        description="check every local shard against its checksum before the first step (1 s per GB); remote data "
        "is always checked as it arrives",
    )
    cache_dir: PathText | None = Field(
        None, description="directory that caches remote datasets; default: pretrain in the user's cache directory"
    )
    cache_bytes: int = Field(
        DEFAULT_BYTES, gt=0, description="largest size of cache_dir in bytes, for all ranks of a node together"
    )
    workers: int = Field(1, ge=0, le=64, description="threads that prepare batches ahead of the training step; 0: none")
    prefetch: int = Field(
        2, gt=0, le=256, description="batches that are prepared ahead, each of which is held in memory"
    )

    @model_validator(mode="after")
    def _one_way_to_name_sources(self) -> "Data":
        if self.path is not None and self.sources:
            raise ValueError("set data.path or data.sources, not both")
        if self.mixing is not None and self.path is None and len(self.sources) < 2:
            raise ValueError("data.mixing is between data.sources: give several, or leave it out")
        if self.mixing is not None and any(source.weight != 1 for source in self.sources):
            raise ValueError("data.mixing makes the weights of sources: leave out weight, or data.mixing")
        return self

    @model_validator(mode="after")
    def _each_source_has_a_name_of_its_own(self) -> "Data":
        names = [source.called for source in self.resolved_sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice and (self.phases or any((source.name, source.objective) != (None, None) for source in self.sources)):
            raise ValueError(f"several data.sources are called {twice[0]}: set name, to another one for each")
        return self

    @model_validator(mode="after")
    def _weights_are_shares(self) -> "Data":
        sources = self.resolved_sources
        if self.phases and (len(sources) < 2 or self.mixing is not None):
            raise ValueError("data.phases changes the weights of several data.sources: give them, and no data.mixing")
        begins = [phase.tokens for phase in self.phases]
        if any(later <= earlier for earlier, later in pairwise(begins)):
            raise ValueError(f"data.phases begin at {begins} tokens: list them in order, no two at the same")
        names = {source.called for source in sources}
        for phase in self.phases:
            where = f"data.phases from {phase.tokens} tokens on"
            if unknown := sorted(phase.weights.keys() - names):
                raise ValueError(
                    f"{where} names {unknown[0]}, which is no source: known are {', '.join(sorted(names))}"
                )
            if missing := sorted(names - phase.weights.keys()):
                raise ValueError(f"{where} leaves out {missing[0]}: give it a weight, 0 if it is not to be read")
            if not any(phase.weights.values()):
                raise ValueError(f"{where} gives no source a weight above 0: raise one")
        if sources and not any(source.weight for source in sources):
            raise ValueError("no source has a weight above 0: raise one")
        for source in sources:
            if not source.weight and not any(phase.weights[source.called] for phase in self.phases):
                raise ValueError(
                    f"the source {source.called} has weight 0 throughout: leave it out, or name it in phases"
                )
        return self

    @property
    def has_several_objectives(self) -> bool:
        """Whether a source has an objective of its own."""
        return any(source.objective is not None for source in self.sources)

    @property
    def resolved_sources(self) -> list[Source]:
        return [Source(path=self.path)] if self.path is not None else list(self.sources)
