"""Seconds of a matrix product and of its gradients."""

from dataclasses import dataclass

import numpy as np

from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.entries import Array, Product
from pretrain.plan.estimate.workload import StepWorkload

_TILE = (128, 256)


@dataclass(frozen=True)
class ProductTime:
    """Seconds of x[m, k] @ w[k, n] and of the gradients of x and of w, products of other shapes, [n] each."""

    forward: Array
    of_input: Array
    of_weight: Array

    def gradient_seconds(self, inputs: Array, weights: Array) -> Array:
        """Seconds of the gradients of so many `inputs` and `weights`, [n, s]."""
        found: Array = inputs * self.of_input[:, None] + weights * self.of_weight[:, None]
        return found


def product_seconds(work: StepWorkload, c: Constants, shape: Product, fp8: Array) -> ProductTime:
    """Seconds of a product of a layer or the head. `fp8`: 1 where the product is in fp8. Rounding for the backward pass
    counts half with each gradient."""
    m, n, k = shape
    rounding, rounding_back = rounding_seconds(work, c, (m * k, k * n, m * n), fp8)
    return ProductTime(
        forward=one_product(work, c, (m, n, k), fp8) + rounding,
        of_input=one_product(work, c, (m, k, n), fp8) + rounding_back / 2,
        of_weight=one_product(work, c, (k, n, m), fp8) + rounding_back / 2,
    )


def rounding_seconds(
    work: StepWorkload,
    c: Constants,
    elements: tuple[Array, Array, Array],
    fp8: Array,
    of_element: Array | float | None = None,
) -> tuple[Array, Array]:
    """Seconds forward and backward of rounding the `elements` of inputs, weights and outputs to 8 bits, where other
    work does not do it in passing. The backward pass rounds again, and also transposes. `of_element`: bytes that are
    moved for each; None: as of the kernels that round."""
    x, weight, out = elements
    speed = work.device.memory_bytes_per_s * c.memory_share
    rounding_bytes = work.kernels.rounding_bytes if of_element is None else of_element
    rounded, transposed = fp8 * rounding_bytes, fp8 * np.where(rounding_bytes, 2, 0)
    return rounded * (x + weight) / speed, (rounded + transposed) * (x + weight + out) / speed


def one_product(work: StepWorkload, c: Constants, shape: Product, fp8: Array, matrices: Array | float = 1.0) -> Array:
    """Seconds of one matrix product [m, k] @ [k, n] of `shape` (m, n, k), or of so many that one kernel makes. Tiles
    run in waves, of which the last may be short, and each tile adds some depth to begin and end."""
    m, n, k = shape
    device = work.device
    short, long = _TILE
    tiles = matrices * np.minimum(np.ceil(m / short) * np.ceil(n / long), np.ceil(m / long) * np.ceil(n / short))
    full = matrices * m * n / (short * long * device.processors)
    waves = full + c.wave_share * (np.ceil(tiles / device.processors) - full)
    flops = waves * device.processors * short * long * 2 * (k + c.depth)
    share = c.per_generation("matmul", device.generation)
    speed = device.peak_flops * share * np.where(fp8 > 0, 2 * c.fp8_share, 1.0)
    moved = matrices * (m * n + m * k + k * n) * work.step.activation_bytes
    moved = moved / (device.memory_bytes_per_s * c.memory_share)
    slower: Array = np.maximum(flops / speed, moved)
    return slower + c.launch_s
