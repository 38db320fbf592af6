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

from pretrain.config.model import Model

_PER_BLOCK = 4  # 64-bit words that one Philox counter value gives
_CHUNK = 1 << 22  # values made at a time: bounds the double-precision scratch to 32 MiB


def initial_values(model: Model, seed: int, name: str, shape: tuple[int, ...], start: int, count: int) -> Tensor:
    """Values [start, start + count) of the flattened global parameter `name`, float32 on the CPU.

    Biases 0, norm weights 1, the rest normal, with a deviation that `model.init` chooses.
    """
    if name.endswith(".bias"):
        return torch.zeros(count)
    if len(shape) == 1:
        return torch.ones(count)
    values = normal(seed, name, shape, start, count)
    if name.endswith("linear_qkv.weight") and model.init == "t5":
        rows = torch.arange(start, start + count) // shape[1]
        query = (rows // model.head_width) % 3 == 0  # query, key and value of each head lie together
        return values * torch.where(query, _t5_query(model), model.hidden**-0.5)
    return values * _DEVIATIONS[model.init](model, name, shape)


def _normal(model: Model, name: str, shape: tuple[int, ...]) -> float:
    """`init_std`; projections into the residual stream divided by sqrt(2 * layers), the number of residual additions
    (GPT-2, section 2.3), where the model asks for it."""
    residual = model.scale_residual_init and name.endswith(("linear_proj.weight", "linear_fc2.weight"))
    return model.init_std / (math.sqrt(2 * model.layers) if residual else 1.0)


def _t5(model: Model, name: str, shape: tuple[int, ...]) -> float:
    """1 / sqrt(inputs), for the embedding 1, and for queries, as scores are not scaled, what makes up for it (Raffel et
    al. 2020, arXiv 1910.10683; mesh-tensorflow's defaults)."""
    if name.endswith("linear_q.weight"):
        return _t5_query(model)
    if name.endswith("word_embeddings.weight"):
        return 1.0
    return model.hidden**-0.5 if "relative" in name else shape[1] ** -0.5


def _t5_query(model: Model) -> float:
    return (model.hidden * model.head_width) ** -0.5


def _xavier(model: Model, name: str, shape: tuple[int, ...]) -> float:
    """sqrt(2 / (inputs + outputs)) of each projection (Glorot, Bengio 2010); embeddings 1 / sqrt(width), which their
    scale makes up for."""
    if "embedding" in name or name.startswith("output_layer"):
        return model.hidden**-0.5
    fused = 3 if name.endswith("linear_qkv.weight") else 2 if name.endswith("linear_kv.weight") else 1
    return math.sqrt(2 / (shape[0] / fused + shape[1]))


_DEVIATIONS = {"normal": _normal, "t5": _t5, "xavier": _xavier}


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
