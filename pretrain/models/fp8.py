"""Products in 8-bit floats: what is multiplied is rounded, sums are fp32.

Weights and activations keep 4 significant bits (e4m3); gradients keep 3, and reach further (e5m2): the choice of
Micikevicius et al. 2022 (arXiv 2209.05433). A tensor is multiplied by a factor first, so that its values fit. Factors
are powers of two, computed from the tensor itself each time. So a run that is resumed needs no history of them, and
however a layout cuts a tensor, its values are rounded the same, but for those 2^13 times smaller than the largest (of
gradients, 2^28).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.layout.checks import FP8_BLOCK

VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
_ROUNDED_BELOW = {VALUES: 2.0**8, GRADIENTS: 2.0**15}  # the greatest powers of two that are none too large
_LEAST = 2.0**-100  # smaller values are taken for this large, so that the factor is finite
_EXPONENT = 0x7F800000  # of the bits of an fp32 number
Quantized = tuple[Tensor, Tensor]
"""(8-bit values, the factor that restores their scale)"""
Quantize = Callable[[Tensor, torch.dtype], Quantized]


def quantize(x: Tensor, dtype: torch.dtype) -> Quantized:
    """`x` in 8 bits, with its own factor [] in fp32. What is not finite makes the factor so."""
    low, high = torch.aminmax(x)
    factor = _factor(torch.maximum(-low, high), dtype)
    return (x * factor).to(dtype), 1 / factor


def quantize_rows(x_NF: Tensor, dtype: torch.dtype, counts_E: Tensor) -> Quantized:
    """Rows of experts in 8 bits, and a factor of each expert, [E], as `quantize` makes it of that expert's rows. The
    first `counts_E[0]` are those of the first expert, and so on."""
    experts = torch.arange(len(counts_E), device=x_NF.device)
    expert_N = experts.repeat_interleave(counts_E, output_size=len(x_NF))
    largest_E = torch.zeros_like(experts, dtype=x_NF.dtype).scatter_reduce(0, expert_N, _largest(x_NF), "amax")
    factor_E = _factor(largest_E, dtype)
    return (x_NF * factor_E[expert_N, None].to(x_NF.dtype)).to(dtype), _aligned(1 / factor_E)


def quantize_matrices(weight_EOI: Tensor, dtype: torch.dtype) -> Iterator[Quantized]:
    """Matrices of experts, one after the other, as `quantize` makes them."""
    factor_E = _factor(_largest(weight_EOI), dtype)
    for weight, factor, restores in zip(weight_EOI, factor_E, _aligned(1 / factor_E), strict=True):
        yield (weight * factor).to(dtype), restores


def _largest(x: Tensor) -> Tensor:
    """The largest absolute value of each row, or matrix, of `x`."""
    low, high = torch.aminmax(x.flatten(1), dim=1)
    return torch.maximum(-low, high)


def _aligned(factor_E: Tensor) -> Tensor:
    """[E] with 16 bytes from one factor to the next: cuBLAS takes the address of each, and wants multiples of them."""
    return F.pad(factor_E[:, None], (0, 3))[:, 0]


def _factor(largest: Tensor, dtype: torch.dtype) -> Tensor:
    power = (largest.float().view(torch.int32) & _EXPONENT).view(torch.float32)  # of two, the next at or below
    factor: Tensor = _ROUNDED_BELOW[dtype] / 2 / power.clamp(min=_LEAST)
    return factor


@dataclass(frozen=True)
class InFp8:
    """See `linears.Arithmetic`."""

    rounding: Quantize = quantize
    """the implementation of `quantize`"""

    adds_bias = False

    def concerns(self, x: Tensor) -> bool:
        return True

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return product(self.rounding(x, VALUES), self.rounding(weight, VALUES), x.dtype)

    def received(self, gradient: Tensor) -> tuple[Quantized, torch.dtype]:
        return self.rounding(gradient, GRADIENTS), gradient.dtype

    def input_gradient(self, received: tuple[Quantized, torch.dtype], weight: Tensor) -> Tensor:
        gradient, dtype = received
        return product(gradient, turned(self.rounding(weight, VALUES)), dtype)

    def add_weight_gradient(self, into: Tensor, received: tuple[Quantized, torch.dtype], x: Tensor) -> None:
        gradient, _ = received
        into += product(turned(gradient), turned(self.rounding(x, VALUES)), into.dtype)


def product(a: Quantized, b: Quantized, dtype: torch.dtype) -> Tensor:
    """a [m, k], b [n, k] -> a b^T [m, n]"""
    (left, of_left), (right, of_right) = a, b
    rows, left = len(left), _in_blocks(left)
    tensor_wise = F.ScalingType.TensorWise
    # Sums are fp32 throughout: faster ones would keep fewer bits of them.
    out: Tensor = F.scaled_mm(
        left, right.T, of_left, tensor_wise, of_right, tensor_wise, output_dtype=dtype, use_fast_accum=False
    )
    return out[:rows]


def turned(x: Quantized) -> Quantized:
    """[m, n] -> [n, m], with zeros after it until m is a multiple of the block."""
    values, factor = x
    return _in_blocks(values).T.contiguous(), factor


def _in_blocks(values: Tensor) -> Tensor:
    """8-bit values [m, n], with rows of zeros after them until m is a multiple of the block: cuBLAS takes no others."""
    missing = -len(values) % FP8_BLOCK
    return F.pad(values.view(torch.uint8), (0, 0, 0, missing)).view(values.dtype) if missing else values
