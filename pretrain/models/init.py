"""Initial weights as a function of (seed, global name, global shape, position in it), and of nothing else.

A counter-based generator (Philox) gives the number at any flat position directly, so each rank makes just its own
part and every layout, stage and device starts from the same weights. Normal values come from the inverse normal
distribution in double precision.
"""

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

from pretrain.config.schema import Model

_PER_BLOCK = 4  # 64-bit words that one Philox counter value gives
_CHUNK = 1 << 22  # values made at a time: bounds the double-precision scratch to 32 MiB


def initial_values(model: Model, seed: int, name: str, shape: tuple[int, ...], start: int, count: int) -> Tensor:
    """Values [start, start + count) of the flattened global parameter `name`, float32 on the CPU.

    Biases 0, norm weights 1, the rest normal with `init_std`; projections into the residual stream are divided by
    sqrt(2 * layers), the number of residual additions (GPT-2, section 2.3).
    """
    if name.endswith(".bias"):
        return torch.zeros(count)
    if len(shape) == 1:
        return torch.ones(count)
    std = model.init_std
    if model.scale_residual_init and name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        std /= math.sqrt(2 * model.layers)
    return normal(seed, name, shape, start, count) * std


def normal(seed: int, name: str, shape: tuple[int, ...], start: int, count: int) -> Tensor:
    """Standard normal values at flat positions [start, start + count), float32."""
    digest = hashlib.sha256(f"{seed}/{name}/{shape}".encode()).digest()
    key = np.frombuffer(digest[:16], dtype=np.uint64)
    out = torch.empty(count)
    for done in range(0, count, _CHUNK):
        size = min(_CHUNK, count - done)
        block, skip = divmod(start + done, _PER_BLOCK)
        words = np.random.Philox(key=key, counter=block).random_raw(skip + size)[skip:]
        uniform = torch.from_numpy(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
        out[done : done + size] = torch.special.ndtri(uniform).float()
    return out
