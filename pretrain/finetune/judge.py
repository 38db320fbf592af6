"""What a fine-tuned model answers for the rows of a split: one prediction for each, beside what is right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_pipeline.batch import Batch
from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.heldout import heldout
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.recipes.base import Recipe
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import ScoreEngine
from pretrain.engine.collective import gather
from pretrain.evaluate.heldout import HeldOut
from pretrain.finetune.metrics import MetricContext, check_metric, compute_metric, default_metrics
from pretrain.process import watchdog

_RANK_ROWS = 16


@dataclass(frozen=True)
class RowAnswer:
    """The answer for one row."""

    number: int
    """number of the row in its split, from 0"""
    predicted: Any
    """a class, a number, or a tag for each word"""
    expected: Any
    """what the row says"""
    confidence: float | None
    """probability of a predicted class; None for other answers"""


@dataclass(frozen=True, kw_only=True)
class AnsweredSplit:
    """A split, as a model answers it."""

    heldout: HeldOut
    figures: Mapping[str, float | None]
    """None: the rows leave the figure undefined"""
    predictions: Sequence[RowAnswer]
    """in the order of the rows"""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Answers rows with a model that has a task head."""

    engine: ScoreEngine
    dataset: LabelledDataset
    recipe: Recipe
    figures: Sequence[str]
    context: MetricContext

    def __call__(self, split: LabelledSplit) -> AnsweredSplit:
        """Answers every row of a split, each once on any layout, and computes the figures. Collective."""
        watchdog.kick(f"answering the {split} rows")
        engine, predictions, sums = self.engine, list[RowAnswer](), np.zeros(2)
        rows = _RANK_ROWS * engine.data_world
        for batch in heldout(
            self.dataset, self.recipe, rows, data_rank=engine.data_rank, data_world=engine.data_world, split=split
        ):
            scores = engine.score(batch)
            assert scores.outputs is not None, "the model has a task head"
            counted = batch.loss_mask > 0
            sums += -scores.log_probability[counted].sum(dtype=np.float64), counted.sum()
            predictions += _predictions(batch, scores.outputs, engine.data_rank, self.context.labels)
        loss_sum, count = engine.sum_over_data(sums).tolist()
        of_ranks = dict(gather((engine.data_rank, predictions)))  # ranks of one replica have the same
        every = sorted((one for part in of_ranks.values() for one in part), key=lambda one: one.number)
        predicted, expected = [one.predicted for one in every], [one.expected for one in every]
        return AnsweredSplit(
            heldout=HeldOut(loss_sum=loss_sum, token_count=int(count), words=None, text_bytes=None),
            figures={name: compute_metric(name, predicted, expected, self.context) for name in self.figures},
            predictions=every,
        )


def make_judge(config: RunConfig, engine: ScoreEngine, dataset: LabelledDataset, recipe: Recipe) -> Judge:
    """The judge of a run with a task head. Raises ConfigError for figures that do not suit its objective."""
    objective = config.objective
    labels = getattr(objective, "labels", ())
    context = MetricContext(labels=labels, positive=config.evaluate.positive)
    figures = config.evaluate.figures or default_metrics(objective.name, labels)
    for name in figures:
        check_metric(name, objective.name, context)
    return Judge(engine=engine, dataset=dataset, recipe=recipe, figures=figures, context=context)


def _predictions(batch: Batch, outputs_BLK: np.ndarray, data_rank: int, labels: Sequence[str | int]) -> list[RowAnswer]:
    """Answers for a data rank's rows, without rows that only pad the batch."""
    share = len(batch.tokens)
    numbers = batch.sample_ids[data_rank * share : (data_rank + 1) * share, 2].tolist()
    found = []
    for row, number in enumerate(numbers):
        if number < 0:
            continue
        places = np.flatnonzero(batch.loss_mask[row] > 0)
        answers_PK = outputs_BLK[row, places]
        if batch.targets is not None:
            found.append(RowAnswer(number, float(answers_PK[0, 0]), float(batch.targets[row, places[0]]), None))
            continue
        predicted, expected = ([labels[i] for i in ids] for ids in (answers_PK.argmax(-1), batch.labels[row, places]))
        if len(labels) and len(places) == 1:
            shifted = answers_PK[0] - answers_PK[0].max()
            confidence = float(1 / np.exp(shifted).sum())
            found.append(RowAnswer(number, predicted[0], expected[0], confidence))
        else:
            found.append(RowAnswer(number, predicted, expected, None))
    return found
