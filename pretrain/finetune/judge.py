"""Answers of a fine-tuned model for the rows of a split: one prediction for each, beside the right one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.heldout import heldout, num_heldout
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.lengths import by_length
from data_pipeline.recipes.base import Recipe
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import ScoreEngine
from pretrain.engine.collective import gather
from pretrain.evaluate.heldout import HeldOut
from pretrain.finetune.answers import RowAnswer, by_row, reader
from pretrain.finetune.metric_context import Label, MetricContext
from pretrain.finetune.metrics import check_metric, compute_metric, default_metrics
from pretrain.finetune.text_figures import how_computed, unfit_notes
from pretrain.process import watchdog

_CALL_ROWS = 16
"""rows that a rank answers at once"""
_SORTED_ROWS = 16 * _CALL_ROWS
"""at most so many rows a rank sorts by their lengths, so that those of a call share little padding"""


@dataclass(frozen=True, kw_only=True)
class MostFrequent:
    """Baseline that accuracy is to be compared with."""

    label: Label
    """the class that most rows, or words, have"""
    accuracy: float
    """accuracy of a classifier that always answers it"""


@dataclass(frozen=True, kw_only=True)
class AnsweredSplit:
    """A split, as a model answers it."""

    heldout: HeldOut
    figures: Mapping[str, float | None]
    """None: the rows leave the figure undefined"""
    predictions: Sequence[RowAnswer]
    """in the order of the rows"""
    notes: Sequence[str] = ()
    """notes on the answers, one sentence each"""
    how_computed: Mapping[str, str] = field(default_factory=dict)
    """method by which figures of texts were computed: see `metrics.how_computed`"""
    most_frequent: MostFrequent | None = None
    """the most frequent class, of a classifier of texts or words that is judged by accuracy"""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Answers rows with a model that has a task head."""

    engine: ScoreEngine
    dataset: LabelledDataset
    recipe: Recipe
    figures: Sequence[str]
    context: MetricContext
    loss: str
    """name of the objective's loss"""

    def __call__(self, split: LabelledSplit) -> AnsweredSplit:
        """Answers every row of a split, each once on any layout, and computes the figures. Collective."""
        watchdog.kick(f"answering the {split} rows")
        engine, answers, sums = self.engine, list[RowAnswer](), np.zeros(2)
        read = reader(self.recipe.samples(self.dataset, split), self.loss, self.context.labels)
        share = _rows_to_sort(num_heldout(self.dataset, self.recipe, split), engine.data_world)
        rows = share * engine.data_world
        for batch in heldout(
            self.dataset, self.recipe, rows, data_rank=engine.data_rank, data_world=engine.data_world, split=split
        ):
            numbers = batch.sample_ids[engine.data_rank * share : (engine.data_rank + 1) * share, 2]
            for called in np.split(by_length(batch), share // _CALL_ROWS):
                part = batch[called]
                scores = engine.score(part)
                assert scores.outputs is not None, "the model has a task head"
                counted = part.loss_mask > 0
                sums += -scores.log_probability[counted].sum(dtype=np.float64), counted.sum()
                answers += [  # but for rows that only pad the batch
                    read(number, part[row : row + 1], scores.outputs[row])
                    for row, number in enumerate(numbers[called].tolist())
                    if number >= 0
                ]
        loss_sum, count = engine.sum_over_data(sums).tolist()
        of_ranks = dict(gather((engine.data_rank, answers)))  # ranks of one replica have the same
        rows_answered = by_row(answer for part in of_ranks.values() for answer in part)
        predicted, expected = ([getattr(one, key) for one in rows_answered] for key in ("predicted", "expected"))
        return AnsweredSplit(
            heldout=HeldOut(loss_sum=loss_sum, token_count=int(count), words=None, text_bytes=None),
            figures={name: compute_metric(name, predicted, expected, self.context) for name in self.figures},
            predictions=rows_answered,
            notes=unfit_notes(self.figures, predicted, expected, self.context),
            how_computed=how_computed(self.figures, predicted, expected, self.context),
            most_frequent=_most_frequent(expected) if self.context.labels and "accuracy" in self.figures else None,
        )


def _most_frequent(expected: Sequence[Any]) -> MostFrequent | None:
    labels = Counter(label for one in expected for label in (one if isinstance(one, list | tuple) else [one]))
    if not labels:
        return None
    label, count = min(labels.items(), key=lambda item: (-item[1], str(item[0])))
    return MostFrequent(label=label, accuracy=count / labels.total())


def _rows_to_sort(count: int, data_world: int) -> int:
    """Rows that each of `data_world` ranks reads at a time, of `count` in all: equally many each time, so that few rows
    pad the last batch."""
    batches = -(-count // (_SORTED_ROWS * data_world))
    return -(-count // (batches * data_world * _CALL_ROWS)) * _CALL_ROWS


def make_judge(
    config: RunConfig, engine: ScoreEngine, dataset: LabelledDataset, recipe: Recipe, figures: Sequence[str]
) -> Judge:
    """The judge of a source of a run with a task head, by `figures`; empty: the objective's. Raises ConfigError for
    figures that do not suit its objective."""
    objective = config.objective
    labels = getattr(objective, "labels", ())
    context = MetricContext.of(config.evaluate, labels)
    figures = figures or default_metrics(objective.name, labels)
    for name in figures:
        check_metric(name, objective.name, context)
    return Judge(engine=engine, dataset=dataset, recipe=recipe, figures=figures, context=context, loss=objective.loss)
