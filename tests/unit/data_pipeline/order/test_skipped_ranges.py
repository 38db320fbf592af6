"""Samples that are left out of an order, against an order written down and cut."""

import random

import pytest

from data_pipeline.order.skipped_ranges import SkippedRanges


def _cut(gaps: list[tuple[int, int]], length: int) -> list[int]:
    """The order with each gap taken out of what the ones before it left."""
    order = list(range(length))
    for begin, samples in gaps:
        del order[begin : begin + samples]
    return order


def _draw(seed: int) -> list[tuple[int, int]]:
    draw = random.Random(seed)
    begins = sorted(draw.randrange(60) for _ in range(draw.randrange(6)))
    return [(begin, draw.randrange(1, 9)) for begin in begins]


@pytest.mark.parametrize("seed", range(50))
def test_a_run_reads_the_order_without_what_was_cut_out_of_it(seed: int) -> None:
    drawn = _draw(seed)
    gaps, order = SkippedRanges(drawn), _cut(drawn, 150)
    assert [gaps.order_position(position) for position in range(80)] == order[:80]
    draw = random.Random(seed)
    for _ in range(20):
        start, count = draw.randrange(70), draw.randrange(1, 12)
        ranges = gaps.ranges(start, count)
        assert [first + n for first, many in ranges for n in range(many)] == order[start : start + count]


@pytest.mark.parametrize("seed", range(50))
def test_what_a_gap_passes_over_is_what_the_run_would_have_read_there(seed: int) -> None:
    drawn = _draw(seed)
    for number, (begin, samples) in enumerate(drawn):
        order = _cut(drawn[:number], 150)
        found = [first + n for first, many in SkippedRanges(drawn).skipped(number) for n in range(many)]
        assert found == order[begin : begin + samples]


def test_what_was_read_before_a_gap_does_not_depend_on_it() -> None:
    gaps = SkippedRanges([(4, 3), (4, 1), (9, 2)])
    assert [gaps.before(position).skips for position in (0, 4, 5, 9, 10)] == [
        (), (), ((4, 3), (4, 1)), ((4, 3), (4, 1)), ((4, 3), (4, 1), (9, 2)),
    ]  # fmt: skip


@pytest.mark.parametrize("gaps", [[(5, 1), (4, 1)], [(3, 0)], [(-1, 2)]])
def test_gaps_that_make_no_sense_are_refused(gaps: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="in ascending order"):
        SkippedRanges(gaps)
