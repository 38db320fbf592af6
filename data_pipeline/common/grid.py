"""Rows of sorted records -> columns: the tasks that merge many files with a bounded number of opens.

A row is a file of records that are sorted by a key (the tokens of a chunk, the keys of its documents); a column is a
range of keys that one task needs from all rows (a shard, a range of deduplication). With few rows, each column's task
reads every row. With many, that would open rows x columns files. Then rows and columns are grouped: one task for each
pair of groups writes what those rows hold for those columns into one file, a *cell*, sorted again; and a column's task
reads the cells of its group of columns.

The number of groups of rows is the square root of `rows`, and groups of columns are such that a cell holds about as
many records as a column. Then all tasks together open about 2 * columns / sqrt(rows) files for each row: 4 at 1,000
chunks with 63 shards, 40 at 100,000 with 6,250, 150 at 1.56 million with 93,000, where rows x columns are 1.5e11.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

_FEW_ROWS = 256


@dataclass(frozen=True)
class Grid:
    """Exchange in which `rows` become `columns`."""

    rows: int
    columns: int

    @property
    def direct(self) -> bool:
        """Whether a column's task reads the rows themselves, without cells."""
        return self.rows <= _FEW_ROWS or self.columns <= 1

    @property
    def row_groups(self) -> int:
        """Number of groups of rows."""
        return math.isqrt(max(0, self.rows - 1)) + 1

    @property
    def column_groups(self) -> int:
        """Number of groups of columns."""
        return max(1, -(-self.columns // self.row_groups))

    def rows_of(self, group: int) -> range:
        """The rows of a group."""
        return range(*_share(self.rows, group, self.row_groups))

    def columns_of(self, group: int) -> range:
        """The columns of a group."""
        return range(*_share(self.columns, group, self.column_groups))

    def group_of(self, column: int) -> int:
        """The group that a column is in."""
        return next(group for group in range(self.column_groups) if column in self.columns_of(group))

    def cells(self) -> Iterator[tuple[int, int]]:
        """(group of rows, group of columns) of each cell; none if `direct`."""
        if not self.direct:
            for rows in range(self.row_groups):
                for columns in range(self.column_groups):
                    yield rows, columns


def _share(count: int, number: int, shares: int) -> tuple[int, int]:
    return count * number // shares, count * (number + 1) // shares
