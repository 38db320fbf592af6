"""The log of routes, and routes of another run: which rows and positions they are of."""

import numpy as np
import torch

from pretrain.engine.megatron.micro_batches import rows_of
from pretrain.models.inputs import MicroBatch
from pretrain.models.route_log import RouteLog, RowLog

LAYER = "decoder.layers.0"


def test_routes_are_logged_and_replayed_by_row_and_position() -> None:
    draw = np.random.default_rng(0)
    replay = draw.integers(0, 8, (6, 10, 2))
    log = RouteLog({LAYER: replay})
    of_layer = RowLog(log, np.array([4, 1]), 4).layer_log(LAYER, 2)
    preferences = torch.randn(3 * 2, 8)  # three positions of two rows, those of one position side by side
    own = torch.arange(12).view(6, 2)
    used = of_layer.replayed(preferences, own, counts=True)
    assert used.view(3, 2, 2)[1, 0].tolist() == replay[4, 7].tolist()
    assert used.view(3, 2, 2)[2, 1].tolist() == replay[1, 8].tolist()
    (found,) = log.found
    assert (found.layer, found.rows.tolist(), found.first) == (LAYER, [4, 1], 6)
    assert found.experts[1, 2].tolist() == own[2 * 2 + 1].tolist()
    assert np.array_equal(found.preferences[0, 1], preferences[2].numpy())


def test_a_recomputed_pass_is_replayed_and_not_logged() -> None:
    log = RouteLog({LAYER: np.ones((1, 2, 1), np.int64)})
    of_layer = RowLog(log, np.array([0]), 0).layer_log(LAYER, 0)
    assert of_layer.replayed(torch.randn(2, 8), torch.zeros(2, 1, dtype=torch.long), counts=False).tolist() == [
        [1],
        [1],
    ]
    assert not log.found


def test_without_routes_of_another_run_those_of_the_layer_are_used() -> None:
    log, own = RouteLog(), torch.zeros(2, 1, dtype=torch.long)
    assert RowLog(log, np.array([0]), 0).layer_log(LAYER, 0).replayed(torch.randn(2, 8), own, counts=True) is own
    assert len(log.found) == 1


def test_rows_of_a_micro_batch_are_those_that_it_was_cut_from() -> None:
    zeros = torch.zeros(3, 4, dtype=torch.long)
    batch = MicroBatch(tokens_BS=zeros, labels_BL=zeros, loss_mask_BL=zeros.float(), positions_BS=zeros, first_row=107)
    assert rows_of(batch, 100).tolist() == [7, 8, 9]
    ordered = MicroBatch(**{**vars(batch), "row_offsets_B": torch.tensor([5, -2, 0])})
    assert rows_of(ordered, 100).tolist() == [12, 5, 7]
