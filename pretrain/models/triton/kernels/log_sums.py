"""Kernels of `log_sums`: a program for ROWS rows of logits, BLOCK of a row at a time. All is computed in fp32, whatever
the logits are. 16 divides the width of a row, so that one instruction loads several logits."""

import triton
import triton.language as tl


@triton.jit
def row_sums(logits, labels, sums, rows, width, real, first, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Writes to `sums` [4, rows], of each row's `real` first logits, the largest, the sum of exp(logit - largest), the
    label's (0 if it is not among them), and the sum of logits. `first`: the id of column 0."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < rows
    columns = logits + row[:, None] * width
    largest = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    added = tl.zeros((ROWS,), tl.float32)
    for start in range(0, real, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        x = tl.load(columns + column, mask=is_row[:, None] & (column < width), other=0.0).to(tl.float32)
        added += tl.sum(tl.where(column < real, x, 0.0), 1)
        x = tl.where(column < real, x, -float("inf"))
        larger = tl.maximum(largest, tl.max(x, 1))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger[:, None]), 1)
        largest = larger
    label = tl.load(labels + row, mask=is_row, other=-1) - first
    is_here = (label >= 0) & (label < real)
    of_label = tl.load(logits + row * width + label, mask=is_here, other=0.0).to(tl.float32)
    tl.store(sums + row, largest, mask=is_row)
    tl.store(sums + rows + row, total, mask=is_row)
    tl.store(sums + 2 * rows + row, of_label, mask=is_row)
    tl.store(sums + 3 * rows + row, added, mask=is_row)


@triton.jit
def row_gradients(logits, labels, factors, rows, width, real, first, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Overwrites logits with their gradients. `factors` [4, rows]: the logarithm of the softmax's denominator, and the
    gradients of that, of the label's logit, and of the sum of logits."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < rows
    columns = logits + row[:, None] * width
    log_sum = tl.load(factors + row, mask=is_row, other=0.0)[:, None]
    of_log_sum = tl.load(factors + rows + row, mask=is_row, other=0.0)[:, None]
    of_label = tl.load(factors + 2 * rows + row, mask=is_row, other=0.0)[:, None]
    of_added = tl.load(factors + 3 * rows + row, mask=is_row, other=0.0)[:, None]
    label = (tl.load(labels + row, mask=is_row, other=-1) - first)[:, None]
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        is_there = is_row[:, None] & (column < width)
        x = tl.load(columns + column, mask=is_there, other=0.0).to(tl.float32)
        gradient = tl.exp(x - log_sum) * of_log_sum + of_added
        gradient += tl.where(column == label, of_label, 0.0)
        gradient = tl.where(column < real, gradient, 0.0)
        tl.store(columns + column, gradient.to(logits.dtype.element_ty), mask=is_there)
