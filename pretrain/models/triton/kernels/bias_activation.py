"""Kernels of `bias_activation`: a program for a tile of ROWS x BLOCK features, or for several below one another. All
is computed in fp32, whatever the numbers are. Of a gated activation gates and values are neighbours, and BLOCK is of
both."""

import triton
import triton.language as tl


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _value_slope(x, KIND: tl.constexpr):
    """The activation's value and derivative. A number that is none stays none."""
    if KIND == "gelu_tanh":
        half = _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))  # (1 + tanh(u)) / 2, where this is of 2 u
        slope = half + x * half * (1 - half) * 1.5957691216057308 * (1 + 0.134145 * x * x)
        value = x * half
    elif KIND == "gelu":
        below = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
        slope = below + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
        value = x * below
    elif KIND == "silu":
        part = _sigmoid(x)
        slope = part * (1 + x * (1 - part))
        value = x * part
    else:
        tl.static_assert(KIND == "relu")
        slope = tl.where(x <= 0, 0.0, 1.0)
        value = tl.where(x <= 0, 0.0, x)
    return value, slope


@triton.jit
def activated(
    x, bias, out, rows, width, KIND: tl.constexpr, GATED: tl.constexpr, BIASED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes activation(x + bias), x [rows, width], bias [width], or of gated ones [rows, width / 2]."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    found = tl.load(x + row * width + column, mask=(row < rows) & (column < width), other=0.0).to(tl.float32)
    if BIASED:
        found += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    if GATED:
        gate, factor = tl.split(tl.reshape(found, (ROWS, BLOCK // 2, 2)))
        value, _ = _value_slope(gate, KIND)
        value *= factor
        column = tl.program_id(1) * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
        width = width // 2
    else:
        value, _ = _value_slope(found, KIND)
    tl.store(out + row * width + column, value.to(out.dtype.element_ty), mask=(row < rows) & (column < width))


@triton.jit
def gradients(
    gradient, x, bias, of_x, sums, rows, width, KIND: tl.constexpr, GATED: tl.constexpr, BIASED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of x, and to `sums` [programs, width] its sum over the rows of each program, which are TILES
    times ROWS."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_there = column < width
    if BIASED:
        added = tl.load(bias + column, mask=is_there, other=0.0).to(tl.float32)
        total = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(TILES):
        row = (tl.program_id(0).to(tl.int64) * TILES + tile) * ROWS + tl.arange(0, ROWS)[:, None]
        found = tl.load(x + row * width + column, mask=(row < rows) & is_there, other=0.0).to(tl.float32)
        if BIASED:
            found += added
        if GATED:
            narrow = tl.program_id(1) * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
            given = gradient + row * (width // 2) + narrow
            factor = tl.load(given, mask=(row < rows) & (narrow < width // 2), other=0.0).to(tl.float32)
            gate, other = tl.split(tl.reshape(found, (ROWS, BLOCK // 2, 2)))
            value, slope = _value_slope(gate, KIND)
            result = tl.reshape(tl.join(factor * other * slope, factor * value), (ROWS, BLOCK))
        else:
            given = gradient + row * width + column
            factor = tl.load(given, mask=(row < rows) & is_there, other=0.0).to(tl.float32)
            _, slope = _value_slope(found, KIND)
            result = factor * slope
        tl.store(of_x + row * width + column, result.to(of_x.dtype.element_ty), mask=(row < rows) & is_there)
        if BIASED:
            total += result
    if BIASED:
        place = sums + tl.program_id(0).to(tl.int64) * width + column
        tl.store(place, tl.sum(total, 0)[None, :], mask=is_there)
