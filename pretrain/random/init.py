"""Initial weights as a function of (seed, global name, global shape, position in it), and of nothing else.

A counter-based generator (Philox) gives the number at any flat position directly, so each rank makes just its own
part and every layout, stage and device starts from the same weights. From which distribution is declared with each
parameter (`plan/parts.py`). Normal values come from the inverse normal distribution in double precision.
"""

import hashlib
from math import prod

import numpy as np
import torch
from torch import Tensor

from pretrain.plan.declaration import Constant, Declared

_PER_BLOCK = 4  # 64-bit words that one Philox counter value gives
_CHUNK = 1 << 22  # values made at a time: bounds the double-precision scratch to 32 MiB


def initial_values(declared: Declared, seed: int, start: int, count: int) -> Tensor:
    """Values [start, start + count) of the flattened whole parameter, float32 on the CPU."""
    if isinstance(declared.init, Constant):
        return torch.full((count,), declared.init.value)
    values = normal(seed, declared.name, declared.shape, start, count)
    deviations, rows = declared.init.deviations, declared.init.rows
    if len(deviations) == 1:
        return values * deviations[0]
    row = torch.arange(start, start + count) // prod(declared.shape[1:])
    return values * torch.tensor(deviations)[row // rows % len(deviations)]


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
