"""Loads a checkpoint into the engine of one rank, on tensors without data: what the rank reads, and what that takes."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from pretrain.checkpoint import store
from pretrain.checkpoint.replaced_head import replaced_head
from pretrain.config.run_config import RunConfig
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.router_biases import router_bias_shapes
from pretrain.rehearse.work import RehearsedWork


@dataclass(frozen=True, kw_only=True)
class LoadCounts:
    """Amounts that one rank reads of a checkpoint, and the memory that this takes."""

    tensors: int
    """global tensors of which the rank holds something, those of the optimizer included"""
    read_bytes: int
    files: int | None
    """files that the rank reads; None without a checkpoint"""
    host_bytes: int
    """largest part of a tensor, which lies in host memory before it is copied"""
    peak_bytes: int = 0
    """most memory on the device"""


def load_without_data(config: RunConfig, engine: Any, work: RehearsedWork) -> LoadCounts:
    """Does what `store.load` does with `engine.state()`, without values; at the start of a run from another's weights,
    with those of them that the checkpoint has. The manifest of a `work.checkpoint` is compared with what the engine
    needs. Raises RunError as `store.load`."""
    checkpoint, fresh, unused = work.checkpoint, set[str](), set[str]()
    if checkpoint is not None and work.starts:
        fresh, unused = replaced_head(checkpoint, config.model)
    state = {name: part for name, part in engine.state().items() if not work.starts or name.startswith("model/")}
    state = {name: part for name, part in state.items() if name not in fresh}
    files = None
    if checkpoint is not None:
        originals = {f"model/{spec.name}": spec.shape for spec in parameter_specs(config.model) if not spec.alias_of}
        originals |= {f"model/{name}": shape for name, shape in router_bias_shapes(config.model).items()}
        weights = {name: shape for name, shape in originals.items() if name not in fresh}
        files = len(store.planned_reads(checkpoint, state, weights, unused))
    pieces = [(part.dtype, piece.value) for part in state.values() for piece in part.pieces]
    sizes = [dtype.itemsize * math.prod(value.shape) for dtype, value in pieces]
    for dtype, value in pieces:
        value.copy_(torch.empty(value.shape, dtype=dtype, device="cpu"))
    if work.trains:
        engine.state_loaded(0 if work.starts else 1)
    return LoadCounts(tensors=len(state), read_bytes=sum(sizes), files=files, host_bytes=max(sizes, default=0))
