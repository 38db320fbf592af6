"""Adafactor: Adam with second moments of rows and columns (Shazeer and Stern 2018, arXiv 1804.04235, algorithms 4, 5).

    d = 1 - t^-0.8
    row = d * row + (1 - d) * mean over columns of (g^2 + 1e-30), and col over rows; of a vector, v for each value
    u = g / sqrt(row col / mean(row)), or g / sqrt(v);    u = u / max(1, RMS(u))
    w = w - learning_rate * max(1e-3, RMS(w)) * u, the middle factor only if `relative`

Means where the paper has sums: the quotient is the same. RMS, rows and columns are those of the whole parameter as it
lies in a checkpoint (queries, keys and values of a layer are one). Every matrix is factored, however small; of more
than two dimensions, the last two are a matrix for each index of the others.
With `beta1`, w moves by the running mean of what is subtracted; weight decay is learning_rate * weight_decay * w, on
matrices only. T5 has neither (Raffel et al. 2019, arXiv 1910.10683, section 3.1.2).
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod, sqrt

import torch
from torch import Tensor

from pretrain.config.optimizer import AdafactorOptimizer
from pretrain.engine.boxes import pieces
from pretrain.engine.optimizer.base import Rule, UpdateRange
from pretrain.engine.optimizer.totals import ReplicaGroups, Totals, squares_by_row_and_column
from pretrain.models.placement import Parameter

_SQUARE_EPS = 1e-30  # the paper's epsilon1, section 9, as the others
_SMALLEST_RMS = 1e-3  # epsilon2
_LARGEST_UPDATE = 1.0  # d, in RMS
_DECAY_POWER = 0.8

Shape = tuple[int, ...]
Index = tuple[int | slice, ...]

ROW, COLUMN, SQUARE, MEAN = "exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq", "exp_avg"


class Adafactor(Rule):
    """See `base.Rule`. Every rank keeps the moments of rows and of columns of its stage's matrices in full."""

    settings: AdafactorOptimizer

    def __init__(self, settings: AdafactorOptimizer, replica_groups: ReplicaGroups) -> None:
        super().__init__(settings, replica_groups)
        self._factors = {
            parameter.name: {
                kind: torch.zeros(shape, device=replica_groups.device)
                for kind, shape in zip((ROW, COLUMN), _factor_shapes(parameter), strict=True)
            }
            for parameter in self._factored()
        }

    def factors(self) -> Iterator[tuple[Parameter, dict[str, Tensor]]]:
        for parameter in self._factored():
            yield parameter, self._factors[parameter.name]

    def moment_names(self, parameter: Parameter) -> Sequence[str]:
        means = (MEAN,) if self.settings.beta1 else ()
        return means if parameter.spec.is_matrix else (*means, SQUARE)

    def apply(self, ranges: Sequence[UpdateRange]) -> None:
        self._accumulate(ranges)
        scales = {parameter.name: self._scales(parameter) for parameter in self._updated()}
        squares = self._squares(ranges, lambda span: self._normalised(span, scales))
        for span in ranges:
            size = prod(span.parameter.spec.unpadded_shape)
            weights, updates = (sqrt(x / size) for x in squares[span.parameter.name])
            rate = span.learning_rate * (max(_SMALLEST_RMS, weights) if self.settings.scale_parameter else 1.0)
            step = self._normalised(span, scales).mul_(rate / max(1.0, updates / _LARGEST_UPDATE))
            if self.settings.beta1:
                step = span.moments[MEAN].lerp_(step, 1 - self.settings.beta1)
            if span.weight_decay:
                span.main.mul_(1 - span.learning_rate * span.weight_decay)
            span.main.sub_(step)

    def _accumulate(self, ranges: Sequence[UpdateRange]) -> None:
        """Second moments: of vectors by value, of matrices by row and column."""
        totals = self.replica_groups.totals(lambda p: sum(map(prod, _factor_shapes(p))) if p.spec.is_matrix else 0)
        for span in ranges:
            if not span.parameter.spec.is_matrix:
                span.moments[SQUARE].lerp_(span.gradient.square().add_(_SQUARE_EPS), span.update**-_DECAY_POWER)
                continue
            rows, columns = self._by_row_and_column(totals, span.parameter)
            counted = self.replica_groups.counted(span.parameter, span.start, span.gradient)
            for of_rows, of_columns, matrix in _matrices(span, counted):
                by_row, by_column = squares_by_row_and_column(matrix)
                rows[of_rows] += by_row
                columns[of_columns] += by_column
        totals.sum()
        for parameter in self._updated():
            share = self.update_of(parameter) ** -_DECAY_POWER
            height, width = parameter.spec.unpadded_shape[-2:]
            factors = self._factors[parameter.name].values()
            sums = self._by_row_and_column(totals, parameter)
            for factor, square_sum, length in zip(factors, sums, (width, height), strict=True):
                factor.lerp_((square_sum / length + _SQUARE_EPS).float(), share)

    def _scales(self, parameter: Parameter) -> tuple[Tensor, Tensor]:
        """Factors that rows and columns of the gradient are multiplied by. Rows of padding have a gradient of zero."""
        rows, columns = self._factors[parameter.name].values()
        real = rows[..., : parameter.spec.unpadded_shape[-2]]
        return rows.div(real.mean(-1, keepdim=True)).rsqrt_(), columns.rsqrt()

    def _normalised(self, span: UpdateRange, scales: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
        """The update before clipping, flat."""
        if not span.parameter.spec.is_matrix:
            return span.gradient * span.moments[SQUARE].rsqrt()
        rows, columns = scales[span.parameter.name]
        update = torch.empty_like(span.gradient)
        for (of_rows, of_columns, matrix), (*_, out) in zip(
            _matrices(span, span.gradient), _matrices(span, update), strict=True
        ):
            torch.mul(matrix, rows[of_rows][:, None], out=out)
            out.mul_(columns[of_columns])
        return update

    def _by_row_and_column(self, totals: Totals, parameter: Parameter) -> Sequence[Tensor]:
        shapes = _factor_shapes(parameter)
        flat = totals.of(parameter).split([prod(shape) for shape in shapes])
        return [part.view(shape) for part, shape in zip(flat, shapes, strict=True)]

    def _updated(self) -> list[Parameter]:
        """Factored parameters that this step updates, whether or not this rank owns a range of them."""
        return [parameter for parameter in self._factored() if self.update_of(parameter) > 0]

    def _factored(self) -> list[Parameter]:
        return [parameter for parameter in self.replica_groups.parameters.values() if parameter.spec.is_matrix]


def _factor_shapes(parameter: Parameter) -> tuple[Shape, Shape]:
    """Shapes of the moments of rows and of columns."""
    *before, rows, columns = parameter.spec.shape
    return (*before, rows), (*before, columns)


def _matrices(span: UpdateRange, flat: Tensor) -> Iterator[tuple[Index, Index, Tensor]]:
    """The range `flat` of a parameter as matrices, and where the moments of their rows and of their columns lie."""
    for box in pieces(flat, span.start, span.parameter.local_shape, span.parameter.offset):
        (*before, row, column), (*counts, height, width) = box.offset, box.value.shape
        for index in product(*map(range, counts)):
            at = tuple(o + i for o, i in zip(before, index, strict=True))
            yield (*at, slice(row, row + height)), (*at, slice(column, column + width)), box.value[index]
