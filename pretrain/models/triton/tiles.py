"""Tiles of a tensor [..., columns], for kernels that compute one element at a time."""

from typing import Any

import torch
from torch import Tensor

_FORWARD: dict[str, Any] = {"ROWS": 8, "BLOCK": 256, "num_warps": 4}
_BACKWARD: dict[str, Any] = {"ROWS": 8, "BLOCK": 128, "TILES": 16, "num_warps": 4}
_INTERPRETED = {"ROWS": 128}  # the interpreter takes as long for a small tile as for a large one


def forward(x: Tensor) -> dict[str, Any]:
    """A program's tile."""
    return _FORWARD if x.is_cuda else _FORWARD | _INTERPRETED


def backward(x: Tensor) -> dict[str, Any]:
    """The tiles of a program that sums TILES of them, below one another."""
    return _BACKWARD if x.is_cuda else _BACKWARD | _INTERPRETED | {"TILES": 1}


def rows_columns(x: Tensor) -> tuple[int, int]:
    """The shape of x, its dimensions but the last as one."""
    return x.numel() // x.shape[-1], x.shape[-1]


def grid(x: Tensor, tiles: dict[str, Any]) -> tuple[int, int]:
    """Numbers of programs."""
    rows, columns = rows_columns(x)
    return -(-rows // (tiles["ROWS"] * tiles.get("TILES", 1))), -(-columns // tiles["BLOCK"])


def sums(x: Tensor, needed: bool) -> Tensor:
    """Place for sums over the rows of each program, [programs, columns] fp32; none, unless it is needed."""
    return x.new_empty((grid(x, backward(x))[0] if needed else 0, x.shape[-1]), dtype=torch.float32)
