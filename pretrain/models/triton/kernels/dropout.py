"""Kernels of `dropout`: a program for a tile of ROWS x BLOCK features, or for several below one another. All is
computed in fp32, whatever the numbers are. Which elements drop out is made where it is read:
`random.dropout.Drawn.mask`.

Tensors are [shared, rows, inner, columns] if ROWS_SECOND, else [rows, shared, inner, columns]; `second` and `inner` are
sizes of theirs. A program's rows [ROWS, 1] are those of all dimensions but the last.
"""

import triton
import triton.language as tl


@triton.jit
def _mix(x):
    """`random.hashing.mix`, of uint64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _fold(hashed, coordinate):
    """`random.hashing.fold`, of one coordinate for each hash."""
    return _mix(hashed + coordinate.to(tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def _kept(
    x, row, is_row, first, offsets, begin, begin_columns, levels, second, inner, OFFSETS: tl.constexpr,
    ROWS_SECOND: tl.constexpr, INNER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x [ROWS, BLOCK] where it is kept, scaled; zeros elsewhere."""
    number, place = row // inner // second, row // inner % second
    if ROWS_SECOND:
        number, place = place, number
    if OFFSETS:
        number = tl.load(offsets + number, mask=is_row, other=0)
    hashed = _fold(_mix((number + tl.load(first)).to(tl.uint64)), begin + place)
    if INNER:
        hashed = _fold(hashed, row % inner)
    lane = begin_columns // 4 + tl.program_id(1) * (BLOCK // 4) + tl.arange(0, BLOCK // 4)[None, :]
    lanes = _fold(hashed, lane.to(tl.int64))[:, :, None] >> (16 * tl.arange(0, 4)).to(tl.uint64)[None, None, :]
    level = ((tl.reshape(lanes, (ROWS, BLOCK)) & 0xFFFF) ^ 0x8000).to(tl.int32)
    return tl.where(level < levels, 0.0, x * (65536.0 / (65536 - levels)))


@triton.jit
def dropped_out(
    x, bias, residual, out, first, offsets, begin, begin_columns, levels, second, inner, rows, width,
    BIASED: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr, OFFSETS: tl.constexpr, ROWS_SECOND: tl.constexpr,
    INNER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes residual + dropout(x + bias), tensors [rows, width] and bias [width]: without the bias, the residual or
    dropout, unless BIASED, ADDS or DROPS."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_there = (row < rows) & (column < width)
    found = tl.load(x + row * width + column, mask=is_there, other=0.0).to(tl.float32)
    if BIASED:
        found += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    if DROPS:
        found = _kept(
            found, row, row < rows, first, offsets, begin, begin_columns, levels, second, inner, OFFSETS, ROWS_SECOND,
            INNER, ROWS, BLOCK,
        )  # fmt: skip
    if ADDS:
        found += tl.load(residual + row * width + column, mask=is_there, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, found.to(out.dtype.element_ty), mask=is_there)


@triton.jit
def gradients(
    gradient, of_x, sums, first, offsets, begin, begin_columns, levels, second, inner, rows, width,
    BIASED: tl.constexpr, OFFSETS: tl.constexpr, ROWS_SECOND: tl.constexpr, INNER: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of x, and if BIASED to `sums` [programs, width] its sum over the rows of each program, which
    are TILES times ROWS."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(TILES):
        row = (tl.program_id(0).to(tl.int64) * TILES + tile) * ROWS + tl.arange(0, ROWS)[:, None]
        is_there = (row < rows) & (column < width)
        found = tl.load(gradient + row * width + column, mask=is_there, other=0.0).to(tl.float32)
        found = _kept(
            found, row, row < rows, first, offsets, begin, begin_columns, levels, second, inner, OFFSETS, ROWS_SECOND,
            INNER, ROWS, BLOCK,
        )  # fmt: skip
        tl.store(of_x + row * width + column, found.to(of_x.dtype.element_ty), mask=is_there)
        total += found
    if BIASED:
        place = sums + tl.program_id(0).to(tl.int64) * width + column
        tl.store(place, tl.sum(total, 0)[None, :], mask=column < width)
