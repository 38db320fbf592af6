"""Triton's interpreter rounds as torch does, so that what it says of a kernel's bits can be believed."""

import numpy as np
import pytest
import torch

from pretrain.models.triton.interpreter import is_interpreted

pytest.importorskip("triton", reason="triton has no wheel for this system")


@pytest.mark.parametrize(
    ("numbers", "name", "most"),
    [
        (torch.bfloat16, "bf16", 20),
        (torch.float16, "fp16", 12),
        (torch.float8_e4m3fn, "fp8e4nv", 8),
        (torch.float8_e5m2, "fp8e5", 15),
    ],
    ids=str,
)
def test_numbers_are_rounded_to_the_nearest(numbers: torch.dtype, name: str, most: int) -> None:
    assert is_interpreted()
    import triton.language as tl
    from triton.runtime import interpreter

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4096, generator=draw) * torch.exp2(torch.randint(-most, most, (4096,), generator=draw).float())
    x = x.clamp(-torch.finfo(numbers).max, torch.finfo(numbers).max)
    x[:6] = torch.tensor([0.0, -0.0, 1 + 2.0**-4, 1 + 3 * 2.0**-4, 1 + 2.0**-8, 1 + 3 * 2.0**-8])  # halves, too
    bits = interpreter._convert_float(x.numpy().view(np.uint32), tl.float32, tl.dtype(name), None)
    assert torch.equal(torch.from_numpy(bits.copy()).view(numbers).float(), x.to(numbers).float())
