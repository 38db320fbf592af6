"""Tokens and model FLOPs of a step, as metrics have them: of the rows, and so the same on every layout."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from data_pipeline.lengths import text_lengths
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.megatron.step_work import StepWork
from pretrain.model_spec.flops import TrainingFlops, training_flops_per_token
from tests.helpers.families import family_config
from tests.helpers.tiny import tiny_config

CLASSES = {"name": "classification", "labels": ["0", "1"]}


def rows_of(config: RunConfig, rank: int = 0, ranks: int = 1) -> Rows:
    batch = SyntheticStream(config).batch(0, 8, rank, ranks)
    return Rows(**{name: values for name, _, values in batch.columns()})


def classifying(family: str, **objective: Any) -> RunConfig:
    config = family_config(family)
    tree = config.model_dump(mode="json") | {"objective": CLASSES | objective}
    return type(config).model_validate(tree)


def test_rows_without_padding_count_in_full() -> None:
    config = tiny_config()
    rows = rows_of(config)
    tokens, flops = StepWork(config).row_work(rows)
    assert tokens == rows.tokens.size
    assert flops == pytest.approx(training_flops_per_token(config.model) * rows.tokens.size)


def test_texts_of_a_packed_row_attend_within_themselves() -> None:
    config = tiny_config(model={"attention": {"pattern": ["dense"]}})
    rows, length = rows_of(config), config.model.sequence_length
    documents = np.zeros(rows.tokens.shape, np.int64)
    documents[:, 5:] = 1
    documents[:, -2:] = -1
    assert text_lengths(documents).tolist() == [5, length - 7] * len(documents)
    tokens, flops = StepWork(config).row_work(replace(rows, documents=documents))
    assert tokens == rows.tokens.size, "the model computes the padding of such rows"
    of = TrainingFlops(config.model)
    one = of.rows(np.array([length]), np.array([length]), np.array([5, length - 7]))
    assert flops == pytest.approx(len(documents) * one)
    # Two products in three passes, each of two operations, for every layer and pair of a query and a key before it.
    model = config.model
    full, packed = length * (length + 1) / 2, 5 * 6 / 2 + (length - 7) * (length - 6) / 2
    fewer = 3 * 2 * 2 * model.layers * model.heads * model.dim_per_head * (full - packed)
    assert of.row(length, length) - one == pytest.approx(fewer)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_padding_that_is_cut_counts_for_nothing(family: str) -> None:
    config = classifying(family)
    rows = rows_of(config)
    ends = rows.loss_mask.argmax(axis=1) + 1  # the answer is at the last token
    tokens, flops = StepWork(config).row_work(rows)
    assert tokens == ends.sum() < rows.tokens.size
    of = TrainingFlops(config.row_model)
    assert flops == pytest.approx(sum(of.row(end, end) for end in ends.tolist()))
    kept = classifying(family, padding="max_length")
    assert StepWork(kept).row_work(rows)[0] == rows.tokens.size


def test_data_ranks_add_up_to_one() -> None:
    config = classifying("bert")
    work = StepWork(config)
    tokens, flops = np.sum([work.row_work(rows_of(config, rank, 4)) for rank in range(4)], axis=0)
    assert (tokens, flops) == pytest.approx(work.row_work(rows_of(config)))
