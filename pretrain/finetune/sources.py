"""A fine-tuned model is judged on each source of its run apart: the figures of each, and their means."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from data_pipeline.common.suggestions import close_matches, did_you_mean
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
    def means(self) -> Mapping[str, float | None]:
        """The mean of each figure that all sources have; undefined where one of them is."""
        sources = [one.figures for one in self.by_source.values()]
        return {name: _mean([figures[name] for figures in sources]) for name in in_each(sources)}

    @property
    def figures(self) -> Mapping[str, float | None]:
        """The figures of the source; of several, the means under their names, and the figures of each source as
        SOURCE/FIGURE."""
        if not self.several:
            return next(iter(self.by_source.values())).figures
        each = {
            figure_of_source(source, name): value
            for source, one in self.by_source.items()
            for name, value in one.figures.items()
        }
        return {**self.means, **each}

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the answers, one sentence each."""
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
        names = {source: judge.figures for source, judge in self.judges.items()}
        if len(names) == 1:
            return self._first.figures
        each = [figure_of_source(source, name) for source, of_source in names.items() for name in of_source]
        return [*in_each(list(names.values())), *each]

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
    """The judges of a run; None if its objective reads no labelled rows (a source's own may: it has a held-out loss).
    Raises ConfigError for figures that do not suit its objective, and for sources of one name."""
    labelled = [dataset for dataset in datasets if isinstance(dataset, LabelledDataset)]
    if not config.objective.labelled or not labelled:
        return None
    names = [dataset.name for dataset in labelled]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"several data.sources are called {twice[0]}: set name, to another one for each")
    make = make_text_judge if config.model.task_head is None else make_judge
    figures = figures_by_source(config.evaluate.figures, names)
    return SourceJudges({one.name: make(config, engine, one, recipe, figures[one.name]) for one in labelled})


def figures_by_source(figures: Sequence[str], sources: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """The figures of each source as `evaluate.figures` names them: those without a source before them, and its own.
    Raises ConfigError for a source that the run does not have."""
    of_all: list[str] = []
    own: dict[str, list[str]] = {source: [] for source in sources}
    for name in figures:
        source, slash, figure = name.rpartition("/")
        if not slash:
            of_all.append(name)
        elif len(sources) == 1:
            raise ConfigError(f"evaluate.figures has {name}, and the run has one source: name the figure {figure}")
        elif source in own:
            own[source].append(figure)
        else:
            known = [figure_of_source(one, figure) for one in sources]
            hint = did_you_mean(close_matches(name, known), f"choose from {', '.join(known)}")
            raise ConfigError(f"evaluate.figures has {name}, and the run has no such source: {hint}")
    return {source: list(dict.fromkeys([*of_all, *of_source])) for source, of_source in own.items()}


def figure_of_source(source: str, figure: str) -> str:
    """The name of a figure of one source of several."""
    return f"{source}/{figure}"


def in_each(names: Sequence[Iterable[str]]) -> list[str]:
    """The names that all of several lists have, in the order of the first."""
    first, *others = names
    return [name for name in first if all(name in other for other in others)]


def _num_cut(judge: Judge | TextJudge, split: LabelledSplit) -> int:
    samples: LabelledSamples = judge.recipe.samples(judge.dataset, split)  # type: ignore[assignment]
    return samples.num_cut


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None
