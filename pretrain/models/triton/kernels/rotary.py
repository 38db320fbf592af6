"""Kernel of `rotary`: a program for TOKENS positions, HEADS heads of them at a time. BLOCK is at least the number of
pairs of a head. Angles are computed once for all heads of a position; all is in fp32, whatever the numbers are."""

import triton
import triton.language as tl


@triton.jit
def turned(
    x, positions, frequencies, out, gain, tokens, rows, heads, pairs, x_place, x_row, x_head, of_row, of_place,
    out_place, out_row, out_head, INTERLEAVED: tl.constexpr, BACK: tl.constexpr, TOKENS: tl.constexpr,
    HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes x [places, rows, heads, 2 pairs] with each pair turned by its position times its frequency, or BACK, and
    multiplied by `gain`. `x_place`, ...: distances in memory between places, rows and heads of x, of `positions`
    [rows, places] and of `out`; numbers of a head are neighbours. A token is a place of a row."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    place, row = token // rows, token % rows
    pair = tl.arange(0, BLOCK)[None, None, :]
    position = tl.load(positions + row * of_row + place * of_place, mask=token < tokens, other=0).to(tl.float32)
    angle = position * tl.load(frequencies + pair, mask=pair < pairs, other=0.0)
    cosine, sine = tl.cos(angle) * gain, tl.sin(angle) * gain
    if BACK:
        sine = -sine
    for start in range(0, heads, HEADS):
        head = start + tl.arange(0, HEADS)[None, :, None]
        is_there = (token < tokens) & (head < heads)
        given = x + place * x_place + row * x_row + head * x_head
        made = out + place * out_place + row * out_row + head * out_head
        if INTERLEAVED:
            column = tl.arange(0, 2 * BLOCK)[None, None, :]
            both = tl.load(given + column, mask=is_there & (column < 2 * pairs), other=0.0).to(tl.float32)
            first, second = tl.split(tl.reshape(both, (TOKENS, HEADS, BLOCK, 2)))
            turned = tl.join(first * cosine - second * sine, second * cosine + first * sine)
            turned = tl.reshape(turned, (TOKENS, HEADS, 2 * BLOCK)).to(out.dtype.element_ty)
            tl.store(made + column, turned, mask=is_there & (column < 2 * pairs))
        else:
            is_there = is_there & (pair < pairs)
            first = tl.load(given + pair, mask=is_there, other=0.0).to(tl.float32)
            second = tl.load(given + pairs + pair, mask=is_there, other=0.0).to(tl.float32)
            tl.store(made + pair, (first * cosine - second * sine).to(out.dtype.element_ty), mask=is_there)
            tl.store(made + pairs + pair, (second * cosine + first * sine).to(out.dtype.element_ty), mask=is_there)
