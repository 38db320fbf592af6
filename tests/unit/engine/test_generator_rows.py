"""Rows that only fill a scored batch: neither of ELECTRA's models has a held-out loss of theirs."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from data_pipeline.batch import Rows
from pretrain.engine.megatron import generator as generator_module
from pretrain.engine.megatron.generator import GeneratorPass
from pretrain.models.inputs import MicroBatch
from pretrain.objectives.base import ScoredLabels

LENGTH, MICRO = 4, 2
SHOWN = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]])
ASKED = np.array([[0, 1, 0, 0], [1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]])
"""where the generator predicts: nowhere in the last row, which repeats the one before it and fills the batch"""


class Objective:
    """A generator that samples 9 everywhere; the detector judges every token that is not padding."""

    forward_generator_score = None

    def generator_scores(self, outputs: Any) -> Any:
        return ScoredLabels(torch.zeros(MICRO, LENGTH), torch.zeros(MICRO, LENGTH), {}), outputs

    def read_samples(self, batch: MicroBatch, tokens_BL: torch.Tensor) -> MicroBatch:
        assert batch.attention_mask_BS is not None
        return replace(batch, tokens_BS=tokens_BL, loss_mask_BL=batch.attention_mask_BS.float())


def test_the_detector_scores_the_tokens_of_rows_with_a_label_alone() -> None:
    rows = Rows(np.ones((4, LENGTH), np.int64), np.ones((4, LENGTH), np.int64), ASKED.astype(np.float32))
    batches = [
        MicroBatch(
            tokens_BS=torch.ones(MICRO, LENGTH, dtype=torch.long),
            positions_BS=torch.arange(LENGTH).expand(MICRO, LENGTH),
            labels_BL=torch.ones(MICRO, LENGTH, dtype=torch.long),
            loss_mask_BL=torch.from_numpy(ASKED[at : at + MICRO]).float(),
            attention_mask_BS=torch.from_numpy(SHOWN[at : at + MICRO]).bool(),
        )
        for at in (0, MICRO)
    ]
    keys: list[torch.Tensor] = []

    def evaluate(noisy: list[MicroBatch], forward: Any, loss: Any) -> list[Any]:
        keys.extend(batch.noise_rows_B for batch in noisy if batch.noise_rows_B is not None)
        return [loss(batch, torch.full((MICRO, LENGTH), 9))[2] for batch in noisy]

    generator = object.__new__(GeneratorPass)
    generator._runner = cast("Any", SimpleNamespace(evaluate=evaluate))
    generator._groups = cast("Any", SimpleNamespace(broadcast_over_pipeline=lambda tokens: tokens))
    generator._objective, generator._device = cast("Any", Objective()), torch.device("cpu")
    generator._replay = None
    read = generator.to_score(batches, rows, 3)
    found = torch.cat([batch.loss_mask_BL for batch in read])
    assert found.tolist() == [*SHOWN[:3].tolist(), [0] * LENGTH]
    assert torch.cat([batch.tokens_BS for batch in read]).eq(9).all()
    assert len(generator._scored) == len(keys) == 2
    assert np.array_equal(torch.cat(generator._sampled).numpy(), np.where(ASKED, 9, -1))


def test_a_replay_has_every_token_that_was_sampled_and_the_last_row_again_in_rows_that_fill() -> None:
    """Token 0 too; -1 is where nothing was sampled. The second of two context ranks has the second half of each row."""
    generator = object.__new__(GeneratorPass)
    generator._groups, generator._device = cast("Any", SimpleNamespace(context_rank=1)), torch.device("cpu")
    generator.replay_samples(
        np.array([[7, 7, 7, 7, 0, -1, 3, -1], [7, 7, 7, 7, -1, 5, -1, 0], [7] * 4 + [-1, 0, -1, 6]])
    )
    found = generator._replayed(torch.full((2, MICRO, LENGTH), 9))
    assert found.tolist() == [[[0, 9, 3, 9], [9, 5, 9, 0]], [[9, 0, 9, 6], [9, 0, 9, 6]]]


def test_logits_are_of_the_generator_s_own_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    part, rows = object.__new__(GeneratorPass), cast("Any", "rows")
    part._runner, part._cutter, part._vocabulary = cast("Any", "runner"), cast("Any", "cutter"), 5
    monkeypatch.setattr(generator_module, "compute_logits", lambda *given: (given, "others"))
    assert part.generator_logits(rows) == ("runner", "cutter", rows, 5)
