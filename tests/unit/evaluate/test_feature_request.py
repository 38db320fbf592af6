"""`--layers`: the numbers of layers, and vectors of their hidden states."""

import numpy as np
import pytest

from pretrain.errors import ConfigError
from pretrain.evaluate.feature_request import LayerChoice

STATES = np.arange(5 * 3, dtype=np.float32).reshape(1, 5, 3)
"""[rows, layers, hidden] of layers 0 to 4"""


@pytest.mark.parametrize(
    ("text", "numbers", "vector"),
    [
        ("last", [4], [12, 13, 14]),
        ("sum", [1, 2, 3, 4], [30, 34, 38]),
        ("sum:2", [3, 4], [21, 23, 25]),
        ("concat:2", [3, 4], [9, 10, 11, 12, 13, 14]),
        ("concat:1", [4], [12, 13, 14]),
        ("all", [0, 1, 2, 3, 4], [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]]),
        ("0", [0], [0, 1, 2]),
        ("3,0", [3, 0], [[9, 10, 11], [0, 1, 2]]),
    ],
)
def test_layers_are_combined_as_named(text: str, numbers: list[int], vector: list[object]) -> None:
    choice = LayerChoice.parse(text)
    assert choice.numbers(4) == numbers
    combined = choice.combine(STATES[:, numbers])
    assert combined.tolist() == [vector]
    assert combined.shape == (1, *choice.shape(4, 3))


def test_all_layers_of_a_stack_of_one_are_rows() -> None:
    assert LayerChoice.parse("all").shape(1, 3) == (2, 3)


@pytest.mark.parametrize("text", ["", "first", "concat", "concat:0", "sum:", "last:2", "all:1", "1,", "-1", "1 2"])
def test_what_is_no_choice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not last, sum, sum:N"):
        LayerChoice.parse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("concat:5", "takes 5 layers, and the stack has 4"),
        ("sum:9", "takes 9 layers, and the stack has 4"),
        ("0,5", "the stack has 4 layers"),
    ],
)
def test_layers_that_are_not_there_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        LayerChoice.parse(text).numbers(4)
