"""Rows of sorted records -> columns: which tasks bring together what lies in many files, in a bounded number of opens.

A row is a file of records that are sorted by a key (the tokens of a chunk, the keys of its documents); a column is a
range of keys that one task wants of all rows (a shard, a range of deduplication). With few rows each column's task
looks into each row. With many that would be rows x columns files to open. Then rows are taken in groups, and columns
too: one task for each pair of groups writes what those rows hold for those columns into one file, a *cell*, sorted
again; and a column's task looks into the cells of its group of columns.

With the square root of `rows` as the number of groups of rows, and as many groups of columns as keep the records of a
cell to those of a column or so, a row and a column's task open about 2 * columns / sqrt(rows) files for each row: 4 at
1,000 chunks with 63 shards, 40 at 100,000 with 6,250, 150 at 1.56 million with 93,000, where rows x columns are 1.5e11.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

_FEW_ROWS = 256


@dataclass(frozen=True)
class Grid:
    """How `rows` become `columns`."""

    rows: int
    columns: int

    @property
    def direct(self) -> bool:
        """Whether a column's task looks into the rows themselves: there are no cells."""
        return self.rows <= _FEW_ROWS or self.columns <= 1

    @property
    def row_groups(self) -> int:
        """How many groups of rows there are."""
        return math.isqrt(max(0, self.rows - 1)) + 1

    @property
    def column_groups(self) -> int:
        """How many groups of columns there are."""
        return max(1, -(-self.columns // self.row_groups))

    def rows_of(self, group: int) -> range:
        """Rows of a group, one after the other."""
        return range(*_share(self.rows, group, self.row_groups))

    def columns_of(self, group: int) -> range:
        """Columns of a group, one after the other."""
        return range(*_share(self.columns, group, self.column_groups))

    def group_of(self, column: int) -> int:
        """The group that a column is in."""
        return next(group for group in range(self.column_groups) if column in self.columns_of(group))

    def cells(self) -> Iterator[tuple[int, int]]:
        """(group of rows, group of columns) of each cell; none where rows are looked into."""
        if not self.direct:
            for rows in range(self.row_groups):
                for columns in range(self.column_groups):
                    yield rows, columns


def _share(count: int, number: int, shares: int) -> tuple[int, int]:
    return count * number // shares, count * (number + 1) // shares
