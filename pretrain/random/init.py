"""Initial weights as a function of (seed, global name, global shape, position in it), and of nothing else.

Numbers come by their flat position (`uniform.py`), so each rank makes just its own part and every layout, stage and
device starts from the same weights. From which distribution is declared with each parameter (`model_spec`).
Normal values come from the inverse normal distribution in double precision.
"""

from concurrent.futures import ThreadPoolExecutor
from math import erfc, inf, prod, sqrt

import torch
from torch import Tensor

from pretrain.model_spec.parameter_spec import Constant, ParameterSpec
from pretrain.random.uniform import uniform

_CHUNK = 1 << 20  # values made at a time: bounds the double-precision scratch of a thread to 8 MiB
_THREADS = 8


def initial_values(spec: ParameterSpec, seed: int, start: int, count: int) -> Tensor:
    """Values [start, start + count) of the flattened whole parameter, float32 on the CPU."""
    if isinstance(spec.init, Constant):
        return torch.full((count,), spec.init.value)
    values = normal(seed, spec.name, spec.shape, start, count, limit=spec.init.limit)
    deviations, rows = spec.init.deviations, spec.init.rows
    if len(deviations) == 1:
        return values * deviations[0]
    row = torch.arange(start, start + count) // prod(spec.shape[1:])
    return values * torch.tensor(deviations)[row // rows % len(deviations)]


def normal(seed: int, name: str, shape: tuple[int, ...], start: int, count: int, *, limit: float = inf) -> Tensor:
    """Standard normal values at flat positions [start, start + count), float32; none is beyond +-`limit`."""
    tail = 0.5 * erfc(limit / sqrt(2))
    out = torch.empty(count)

    def fill(done: int) -> None:
        size = min(_CHUNK, count - done)
        values = torch.from_numpy(uniform(f"{seed}/{name}/{shape}", start + done, size))
        if tail:
            values = tail + (1 - 2 * tail) * values
        out[done : done + size] = torch.special.ndtri(values).float()

    if count <= _CHUNK:
        fill(0)
    else:  # numpy and torch let other threads work meanwhile
        with ThreadPoolExecutor(min(_THREADS, torch.get_num_threads())) as pool:
            list(pool.map(fill, range(0, count, _CHUNK)))
    return out
