"""Lists of consecutive items by size."""

from __future__ import annotations

import pytest

from data_pipeline.common.batches import batches, groups_within


@pytest.mark.parametrize(
    ("texts", "expected"),
    [([], []), (["a"], [["a"]]), (["aa", "b", "c"], [["aa", "b"], ["c"]]), (["aaaa", "b"], [["aaaa"], ["b"]])],
)
def test_a_batch_ends_with_the_item_that_makes_it_large_enough(texts: list[str], expected: list[list[str]]) -> None:
    assert list(batches(texts, len, 3)) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], []),
        (["aa", "b", "c"], [["aa", "b"], ["c"]]),
        (["aaaa", "b"], [["aaaa"], ["b"]]),
        (["", "", ""], [["", ""], [""]]),
    ],
)
def test_a_group_stays_within_its_size_and_its_number_of_items(texts: list[str], expected: list[list[str]]) -> None:
    assert list(groups_within(texts, len, 3, 2)) == expected
