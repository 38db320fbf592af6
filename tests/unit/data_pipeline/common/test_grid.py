"""Every row and column lies in one group, and what is opened for a row hardly grows with their number."""

import pytest

from data_pipeline.common.grid import Grid


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (1, 1), (5, 900), (256, 40), (257, 1), (300, 7), (1000, 63)])
def test_groups_part_rows_and_columns(rows: int, columns: int) -> None:
    grid = Grid(rows, columns)
    assert [row for group in range(grid.row_groups) for row in grid.rows_of(group)] == list(range(rows))
    assert [c for group in range(grid.column_groups) for c in grid.columns_of(group)] == list(range(columns))
    for column in range(columns):
        assert column in grid.columns_of(grid.group_of(column))
    cells = list(grid.cells())
    assert grid.direct == (rows <= 256 or columns <= 1)
    assert len(cells) == (0 if grid.direct else grid.row_groups * grid.column_groups)


def opens_of_a_row(rows: int, columns: int) -> float:
    grid = Grid(rows, columns)
    return grid.column_groups + columns * grid.row_groups / rows


def test_opens_are_those_of_the_docstring() -> None:
    found = [opens_of_a_row(rows, columns) for rows, columns in ((1000, 63), (100_000, 6250), (1_560_000, 93_000))]
    assert found == pytest.approx([4, 40, 149], rel=0.02)


def test_a_cell_holds_no_more_than_a_column_or_so() -> None:
    for rows, columns in ((300, 7), (1000, 63), (100_000, 6250), (1_560_000, 93_000)):
        grid = Grid(rows, columns)
        assert grid.row_groups * grid.column_groups >= columns
