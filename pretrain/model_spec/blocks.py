"""The blocks of a parameter: the matrices in it that an optimizer of whole matrices (Muon) updates each by itself.

A fused parameter holds several: queries, keys and values lie in one, gate and value of a feed-forward in another. Which
rows are whose is declared with the parameter, of its global rows, so that no layout can change it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class RowBlocks:
    """Runs of `rows` rows each belong to the blocks `names` in turn, and start over after the last one. Of more than
    two dimensions, all but the last are rows. With `parts`, the rows are that many equal parts one after the other,
    each with blocks of its own: experts."""

    names: tuple[str, ...] = ("all",)
    rows: int = 1
    are_heads: bool = False
    """each run is one attention head's"""
    parts: int = 1

    def rows_of(self, total: int, per_head: bool) -> Mapping[str, np.ndarray]:
        """Indices of each block's rows among `total` rows, ascending. `per_head`: each head is a block of its own."""
        if self.parts > 1:
            size, of_part = total // self.parts, replace(self, parts=1)
            blocks = of_part.rows_of(size, per_head)
            return {f"{n}.{name}": n * size + rows for n in range(self.parts) for name, rows in blocks.items()}
        run = np.arange(total) // self.rows
        assert total % (self.rows * len(self.names)) == 0, f"{total} rows in runs of {self.rows} of {self.names}"
        if self.are_heads and per_head:
            names = [self.names[number % len(self.names)] for number in range(total // self.rows)]
            return {f"{name}.{names[:n].count(name)}": np.flatnonzero(run == n) for n, name in enumerate(names)}
        turn = run % len(self.names)
        return {
            name: np.flatnonzero(np.isin(turn, [n for n, other in enumerate(self.names) if other == name]))
            for name in dict.fromkeys(self.names)
        }


def newton_schulz_flops(rows: int, columns: int, steps: int) -> float:
    """FLOPs of orthogonalizing a matrix: of the products of its steps."""
    small, large = sorted((rows, columns))
    return steps * (4.0 * small * small * large + 2.0 * small**3)
