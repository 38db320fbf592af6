"""A loss of several terms is the sum of their means over the global batch, whatever parts the sums are made of."""

import pytest
import torch

from pretrain.objectives.terms import Term, scales, sum_pairs, total


def _term(values: list[float]) -> Term:
    return Term(torch.tensor(values).sum(), torch.tensor(len(values), dtype=torch.int))


def test_each_term_is_divided_by_its_own_count_in_the_whole_batch() -> None:
    parts = [
        {"tokens": _term([1.0, 2.0, 6.0]), "answers": _term([4.0]), "balance": _term([8.0])},
        {"tokens": _term([3.0]), "answers": _term([]), "balance": _term([2.0, 2.0])},
    ]
    factors = scales({"tokens": 1.0, "answers": 1.0, "balance": 0.5}, [4, 1, 3])
    loss = sum(float(total(part, factors)) for part in parts) / 4
    assert loss == pytest.approx(12 / 4 + 4 / 1 + 0.5 * 12 / 3)
    assert sum_pairs([list(part.values()) for part in parts], 3, torch.device("cpu")).tolist() == [
        [12.0, 4.0],
        [4.0, 1.0],
        [12.0, 3.0],
    ]


def test_a_main_term_may_have_a_weight_too() -> None:
    terms = {"tokens": _term([1.0, 2.0]), "answers": _term([4.0])}
    factors = scales({"tokens": 2.0, "answers": 3.0}, [2, 1])
    assert float(total(terms, factors)) / 2 == pytest.approx(2 * 3 / 2 + 3 * 4)


def test_what_nothing_is_asked_of_adds_nothing() -> None:
    assert scales({"tokens": 1.0, "answers": 1.0}, [4, 0]) == {"answers": 0.0}
    assert scales({"tokens": 1.0}, [4]) == {}
    assert sum_pairs([], 2, torch.device("cpu")).tolist() == [[0, 0], [0, 0]]
