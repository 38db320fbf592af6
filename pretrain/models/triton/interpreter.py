"""Triton's interpreter, by which kernels run on a CPU where TRITON_INTERPRET=1 is set, with the roundings of a GPU: as
released (3.7), it cuts off what fp32 has more than bf16 or 8 bits.

Tests can hold by it which numbers kernels compute, and in which order. It takes milliseconds for each program, and adds
and multiplies the bit patterns of numbers in half precision: kernels convert to fp32 what they load.
"""

from typing import Any

import numpy as np
import torch

_TYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}
_BITS = {8: (torch.uint8, np.uint8), 16: (torch.int16, np.int16), 32: (torch.int32, np.int32)}
_BITS |= {64: (torch.int64, np.int64)}


def is_interpreted() -> bool:
    """Whether kernels run in the interpreter; then it is repaired. Imports triton."""
    import triton

    if not triton.knobs.runtime.interpret:
        return False
    from triton.runtime import interpreter

    interpreter._convert_float = _convert
    return True


def _convert(bits: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
    """The bits of numbers of type `source`, as bits of those of type `target`, rounded as torch does."""
    of_source, to_target = _BITS[source.primitive_bitwidth][1], _BITS[target.primitive_bitwidth][0]
    numbers = torch.from_numpy(np.array(bits).reshape(-1).view(of_source).copy()).view(_TYPES[source.name])
    found = numbers.to(_TYPES[target.name]).view(to_target).numpy()
    return found.view(f"uint{target.primitive_bitwidth}").reshape(np.shape(bits))
