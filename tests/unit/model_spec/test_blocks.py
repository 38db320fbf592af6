"""The matrices that parameters are declared to hold."""

import numpy as np
import pytest

from pretrain.config.model import Model
from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.modules import parameter_specs

SMALL = {"layers": 1, "hidden": 8, "heads": 4, "sequence_length": 16, "vocabulary": 32}


def test_queries_keys_and_values_of_a_group_are_three_blocks() -> None:
    blocks = RowBlocks(("query", "query", "key", "value"), 2, are_heads=True)
    found = {name: rows.tolist() for name, rows in blocks.rows_of(16, per_head=False).items()}
    assert found == {
        "query": [0, 1, 2, 3, 8, 9, 10, 11],
        "key": [4, 5, 12, 13],
        "value": [6, 7, 14, 15],
    }
    heads = {name: rows.tolist() for name, rows in blocks.rows_of(16, per_head=True).items()}
    assert heads == {
        "query.0": [0, 1], "query.1": [2, 3], "key.0": [4, 5], "value.0": [6, 7],
        "query.2": [8, 9], "query.3": [10, 11], "key.1": [12, 13], "value.1": [14, 15],
    }  # fmt: skip


def test_gate_and_value_are_two_blocks_whatever_heads_are() -> None:
    blocks = RowBlocks(("gate", "value"))
    for per_head in (False, True):
        assert [rows.tolist() for rows in blocks.rows_of(6, per_head).values()] == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(
    "settings",
    [
        {"family": "llama", "kv_heads": 2, "positions": "rotary"},
        {"family": "gpt"},
        {"family": "bert"},
        {"family": "t5", "target_length": 8},
        {"family": "transformer_xl", "positions": "transformer_xl"},
    ],
)
def test_every_row_of_a_hidden_matrix_is_in_one_block_and_other_parameters_have_none(settings: dict) -> None:
    specs = parameter_specs(Model.model_validate(SMALL | settings))
    for spec in specs:
        looked_up = any(part in spec.name for part in ("embedding", "output_layer", "relative", "next_sentence"))
        assert (spec.blocks is not None) == (spec.is_matrix and not looked_up), spec.name
        if spec.blocks is not None:
            total = int(np.prod(spec.shape[:-1]))
            for per_head in (False, True):
                rows = np.concatenate(list(spec.blocks.rows_of(total, per_head).values()))
                assert sorted(rows) == list(range(total))
