"""Each context rank gets its slice of a column's positions, or all of them, as the column says."""

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from data_pipeline.batch import Rows
from pretrain.engine.megatron.micro_batches import Cutter
from pretrain.models.inputs import MicroBatch

ROWS, INPUTS, LABELS, MICRO = 4, 6, 4, 2
_SIZES = {"rows": ROWS, "inputs": INPUTS, "labels": LABELS}


def _rows() -> Rows:
    """Every column, counting up; documents all begin at the first position."""
    columns: dict[str, Any] = {}
    for one in fields(Rows):
        shape = [_SIZES[axis] for axis in one.metadata["column"].axes]
        columns[one.name] = np.arange(np.prod(shape)).reshape(shape)
    return Rows(**columns | {"documents": np.zeros((ROWS, INPUTS), np.int64)})


@pytest.mark.parametrize("rank", [0, 1])
def test_every_column_reaches_the_model_cut_as_it_says(rank: int) -> None:
    rows, groups = _rows(), SimpleNamespace(context_rank=rank, context_world=2)
    cut = Cutter(cast("Any", groups), torch.device("cpu")).cut(rows, MICRO, first_row=10)
    assert [batch.first_row for batch in cut] == [10, 12]
    own = {"inputs": slice(rank * 3, rank * 3 + 3), "labels": slice(rank * 2, rank * 2 + 2)}
    given = {name.rsplit("_", 1)[0]: name for name in (one.name for one in fields(MicroBatch))}
    for name, column, values in rows.columns():
        whole = torch.cat([getattr(batch, given[name]) for batch in cut])
        expected = values if column.replicated or column.axes == ("rows",) else values[:, own[column.axes[1]]]
        assert torch.equal(whole, torch.from_numpy(np.ascontiguousarray(expected))), name
    for batch in Cutter(cast("Any", groups), torch.device("cpu")).cut(replace(rows, positions=None), MICRO):
        assert batch.positions_BS.tolist() == [list(range(INPUTS))[own["inputs"]]] * MICRO
        assert batch.decoder_positions_BL is not None
        assert batch.decoder_positions_BL.tolist() == [list(range(LABELS))[own["labels"]]] * MICRO


def test_rows_that_cannot_be_written_to_are_copied() -> None:
    tokens = np.ones((ROWS, INPUTS), np.int64)
    tokens.flags.writeable = False
    groups = SimpleNamespace(context_rank=0, context_world=1)
    (batch,) = Cutter(cast("Any", groups), torch.device("cpu")).cut(Rows.of(tokens, tokens), ROWS)
    batch.tokens_BS[0, 0] = 7
    assert tokens[0, 0] == 1
