"""A fine-tuned model is judged on each source of its run apart: the figures of each, and their means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from data_pipeline.dataset.source import DataSource, LabelledSplit
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.recipes.base import Recipe
from data_pipeline.recipes.labelled import LabelledSamples
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError
from pretrain.evaluate.heldout import HeldOut
from pretrain.finetune.judge import AnsweredSplit, Judge, make_judge
from pretrain.finetune.texts import TextJudge, make_text_judge


@dataclass(frozen=True, kw_only=True)
class JudgedSplit:
    """A split of all sources that have it, as a model answers it."""

    by_source: Mapping[str, AnsweredSplit]
    several: bool
    """the run has several sources"""

    @property
    def heldout(self) -> HeldOut:
        """The loss over the rows of all sources."""
        scored = [one.heldout for one in self.by_source.values()]
        terms: dict[str, tuple[float, int]] = {}
        for one in scored:
            for name, (loss_sum, count) in one.terms.items():
                before_sum, before_count = terms.get(name, (0.0, 0))
                terms[name] = before_sum + loss_sum, before_count + count
        return HeldOut(
            loss_sum=sum(one.loss_sum for one in scored),
            token_count=sum(one.token_count for one in scored),
            words=None,
            text_bytes=None,
            terms=terms,
            by_source=[(one.loss_sum, one.token_count) for one in scored],
        )

    @property
    def figures(self) -> Mapping[str, float | None]:
        """The figures of the source; of several, the mean of each figure under its name, which is undefined where one
        of them is, and those of each source as SOURCE/FIGURE."""
        sources = list(self.by_source.values())
        if not self.several:
            return sources[0].figures
        means = {name: _mean([one.figures[name] for one in sources]) for name in sources[0].figures}
        each = {
            figure_of_source(source, name): value
            for source, one in self.by_source.items()
            for name, value in one.figures.items()
        }
        return means | each

    @property
    def notes(self) -> Sequence[str]:
        """What is to be known about the answers, one sentence each."""
        return [
            f"{source}: {note}" if self.several else note
            for source, one in self.by_source.items()
            for note in one.notes
        ]


@dataclass(frozen=True)
class SourceJudges:
    """Answers the rows of each source of a run."""

    judges: Mapping[str, Judge | TextJudge]
    """judge of each source by the source's name, in the order of the config"""

    @property
    def datasets(self) -> Mapping[str, LabelledDataset]:
        """The rows of each source."""
        return {source: judge.dataset for source, judge in self.judges.items()}

    @property
    def figures(self) -> Sequence[str]:
        """Names of the figures of a `JudgedSplit`."""
        names = self._first.figures
        if len(self.judges) == 1:
            return names
        return [*names, *(figure_of_source(source, name) for source in self.judges for name in names)]

    @property
    def splits(self) -> Sequence[LabelledSplit]:
        """The splits to be answered: those that a source has beside its training rows."""
        splits = [split for dataset in self.datasets.values() for split in dataset.splits() if split != "train"]
        return list(dict.fromkeys(splits))

    @property
    def writes_texts(self) -> bool:
        """Whether rows are answered by texts, which takes long, and not by a task head."""
        return isinstance(self._first, TextJudge)

    @property
    def obstacle(self) -> str | None:
        """Why this layout answers nothing, and what to do; None: it does."""
        return self._first.obstacle if isinstance(self._first, TextJudge) else None

    def num_cut(self, splits: Sequence[LabelledSplit]) -> Mapping[str, Mapping[LabelledSplit, int]]:
        """Rows of each source and split that lose tokens because they are too long."""
        return {
            source: {split: _num_cut(judge, split) for split in splits if split in judge.dataset.splits()}
            for source, judge in self.judges.items()
        }

    def __call__(self, split: LabelledSplit) -> JudgedSplit:
        """Answers every row of a split of each source that has it, each once on any layout. Collective; call it where
        there is no `obstacle`."""
        answered = {source: judge(split) for source, judge in self.judges.items() if split in judge.dataset.splits()}
        return JudgedSplit(by_source=answered, several=len(self.judges) > 1)

    @property
    def _first(self) -> Judge | TextJudge:
        return next(iter(self.judges.values()))


def make_judges(
    config: RunConfig, engine: Engine, datasets: Sequence[DataSource], recipe: Recipe
) -> SourceJudges | None:
    """The judges of a run; None if its rows are not labelled. Raises ConfigError for figures that do not suit its
    objective, and for sources of one name."""
    labelled = [dataset for dataset in datasets if isinstance(dataset, LabelledDataset)]
    if not labelled:
        return None
    names = [dataset.name for dataset in labelled]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"several data.sources are called {twice[0]}: set name, to another one for each")
    if config.model.task_head is None:
        return SourceJudges({one.name: make_text_judge(config, engine, one, recipe) for one in labelled})
    return SourceJudges({one.name: make_judge(config, engine, one, recipe) for one in labelled})


def figure_of_source(source: str, figure: str) -> str:
    """The name of a figure of one source of several."""
    return f"{source}/{figure}"


def _num_cut(judge: Judge | TextJudge, split: LabelledSplit) -> int:
    samples: LabelledSamples = judge.recipe.samples(judge.dataset, split)  # type: ignore[assignment]
    return samples.num_cut


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None
