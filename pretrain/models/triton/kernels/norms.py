"""Kernels of `norms`: a program for ROWS rows at a time, whole: BLOCK is at least their width. All is computed in fp32,
whatever the numbers are. CENTERED: a mean is subtracted and a bias added; otherwise a row's mean square is made one.
OFFSET is added to the gain."""

import triton
import triton.language as tl


@triton.jit
def normed(
    x, gain, bias, out, statistics, rows, width, eps, CENTERED: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the norm of x [rows, width], and to `statistics` [2, rows] mean and 1 / deviation of each row."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    is_there = (row < rows) & (column < width)
    found = tl.load(x + row * width + column, mask=is_there, other=0.0).to(tl.float32)
    factor = tl.load(gain + column, mask=column < width, other=0.0).to(tl.float32) + OFFSET
    if CENTERED:
        mean = tl.sum(found, 1)[:, None] / width
        found = tl.where(column < width, found - mean, 0.0)
        tl.store(statistics + row, mean, mask=row < rows)
    scale = 1 / tl.sqrt(tl.sum(found * found, 1)[:, None] / width + eps)
    tl.store(statistics + rows + row, scale, mask=row < rows)
    result = found * scale * factor
    if CENTERED:
        result += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, result.to(out.dtype.element_ty), mask=is_there)


@triton.jit
def gradients(
    gradient, added, x, gain, statistics, of_x, sums, rows, width, CENTERED: tl.constexpr, OFFSET: tl.constexpr,
    ADDS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of x, with `added` [rows, width] if ADDS; and to `sums` [programs, 1 or 2, width] that of the
    gain, and of the bias if CENTERED, of the rows of each program: TILES times ROWS."""
    column = tl.arange(0, BLOCK)[None, :]
    factor = tl.load(gain + column, mask=column < width, other=0.0).to(tl.float32) + OFFSET
    of_gain = tl.zeros((ROWS, BLOCK), tl.float32)
    of_bias = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(TILES):
        row = (tl.program_id(0).to(tl.int64) * TILES + tile) * ROWS + tl.arange(0, ROWS)[:, None]
        is_there = (row < rows) & (column < width)
        given = tl.load(gradient + row * width + column, mask=is_there, other=0.0).to(tl.float32)
        unit = tl.load(x + row * width + column, mask=is_there, other=0.0).to(tl.float32)
        scale = tl.load(statistics + rows + row, mask=row < rows, other=0.0)
        if CENTERED:
            unit -= tl.load(statistics + row, mask=row < rows, other=0.0)
            unit = tl.where(column < width, unit, 0.0)
            of_bias += given
        unit *= scale
        of_gain += given * unit
        given *= factor
        result = given - unit * (tl.sum(given * unit, 1)[:, None] / width)
        if CENTERED:
            result -= tl.sum(given, 1)[:, None] / width
        result *= scale
        if ADDS:
            result += tl.load(added + row * width + column, mask=is_there, other=0.0).to(tl.float32)
        tl.store(of_x + row * width + column, result.to(of_x.dtype.element_ty), mask=is_there)
    place = sums + tl.program_id(0).to(tl.int64) * (width * (2 if CENTERED else 1)) + column
    tl.store(place, tl.sum(of_gain, 0)[None, :], mask=column < width)
    if CENTERED:
        tl.store(place + width, tl.sum(of_bias, 0)[None, :], mask=column < width)
