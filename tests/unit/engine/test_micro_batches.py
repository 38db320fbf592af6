"""Each context rank gets its slice of a column's positions, or all of them, as the column says, and the segments of all
positions."""

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from data_pipeline.batch import Rows
from pretrain.config.attention import Attention
from pretrain.config.model import Model
from pretrain.engine.megatron.micro_batches import Cutter
from pretrain.models.inputs import MicroBatch
from tests.helpers.tiny import tiny_config

ROWS, INPUTS, LABELS, MICRO = 4, 6, 4, 2
CPU = torch.device("cpu")
DECODER = tiny_config().model
SPARSE_ENCODER = Model.model_validate(
    {
        "family": "bert", "layers": 2, "hidden": 32, "heads": 4, "sequence_length": INPUTS, "vocabulary": 64,
        "attention": {"pattern": ["dense", "banded"], "window": 2},
    }
)  # fmt: skip
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
    cutter = Cutter(cast("Any", groups), CPU, DECODER)
    cut = cutter.cut(rows, MICRO, first_row=10)
    assert [batch.first_row for batch in cut] == [10, 12]
    own = {"inputs": slice(rank * 3, rank * 3 + 3), "labels": slice(rank * 2, rank * 2 + 2)}
    given = {name.rsplit("_", 1)[0]: name for name in (one.name for one in fields(MicroBatch))}
    for name, column, values in replace(rows, documents=None).columns():
        whole = torch.cat([getattr(batch, given[name]) for batch in cut])
        expected = values if column.replicated or column.axes == ("rows",) else values[:, own[column.axes[1]]]
        assert torch.equal(whole, torch.from_numpy(np.ascontiguousarray(expected))), name
    for batch in cutter.cut(replace(rows, positions=None), MICRO):
        assert batch.positions_BS.tolist() == [list(range(INPUTS))[own["inputs"]]] * MICRO
        assert batch.decoder_positions_BL is not None
        assert batch.decoder_positions_BL.tolist() == [list(range(LABELS))[own["labels"]]] * MICRO


@pytest.mark.parametrize("rank", [0, 1])
def test_segments_and_positions_are_those_of_documents_over_all_context_ranks(rank: int) -> None:
    tokens = np.ones((ROWS, INPUTS), np.int64)
    documents = np.array([[0, 0, 1, 1, 1, -1], [0] * 6, [0, 1, 2, 3, 4, 5], [-1] * 6])
    groups = SimpleNamespace(context_rank=rank, context_world=2)
    cut = Cutter(cast("Any", groups), CPU, DECODER).cut(replace(Rows.of(tokens, tokens), documents=documents), MICRO)
    assert [batch.packed for batch in cut] == [
        [[(0, 2), (2, 5)], [(0, 6)]],
        [[(n, n + 1) for n in range(6)], []],
    ]
    positions = torch.cat([batch.positions_BS for batch in cut]).tolist()
    of_rows = [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5], [0] * 6, [0, 1, 2, 3, 4, 5]]
    assert positions == [row[rank * 3 : rank * 3 + 3] for row in of_rows]


def test_rows_of_an_encoder_with_sparse_patterns_end_with_their_text() -> None:
    tokens, shown = np.ones((ROWS, INPUTS), np.int64), np.ones((ROWS, INPUTS), np.bool_)
    shown[1, 4:] = shown[3, 5:] = shown[3, 0] = False
    rows = replace(Rows.of(tokens, tokens), attention_mask=shown)
    groups = cast("Any", SimpleNamespace(context_rank=0, context_world=1))
    first, second = Cutter(groups, CPU, SPARSE_ENCODER).cut(rows, MICRO)
    assert (first.packed, first.packed_with_padding) == ([[(0, 6)], [(0, 4)]], False)
    assert (second.packed, second.packed_with_padding) == ([[(0, 6)], [(0, 5)]], True)
    dense = SPARSE_ENCODER.model_copy(update={"attention": Attention.model_validate({"pattern": ["dense"]})})
    for model in (dense, DECODER):  # which read the mask alone
        assert [batch.packed for batch in Cutter(groups, CPU, model).cut(rows, MICRO)] == [None, None]


def test_rows_that_cannot_be_written_to_are_copied() -> None:
    tokens = np.ones((ROWS, INPUTS), np.int64)
    tokens.flags.writeable = False
    groups = SimpleNamespace(context_rank=0, context_world=1)
    (batch,) = Cutter(cast("Any", groups), CPU, DECODER).cut(Rows.of(tokens, tokens), ROWS)
    batch.tokens_BS[0, 0] = 7
    assert tokens[0, 0] == 1
