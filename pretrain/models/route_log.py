"""A log of where the tokens of a rank's rows went, and routes of another run in place of their own.

Rounding decides between two experts whose scores are nearly the same, and such a token goes elsewhere on another
layout. So `pretrain verify` has layouts use the routes of its reference, and judges their own by themselves.

Shapes: T tokens of a layer on this rank, B rows, S positions of a row on this rank, E experts, K experts of a token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class LoggedRoutes:
    """The routes of some rows in one layer, on some of their positions."""

    layer: str
    rows: np.ndarray
    """[B] among those of this data rank"""
    first: int
    """the first of the positions"""
    preferences: np.ndarray
    """[B, S, E] fp32: what experts were chosen by"""
    experts: np.ndarray
    """[B, S, K] int64, ascending: those chosen, whether used or not"""


@dataclass
class RouteLog:
    """The log of a step, or of a call that scores."""

    replay: Mapping[str, np.ndarray] | None = None
    """[rows, positions, K] of this data rank's rows by layer, ascending, in place of the layer's own; None: these are
    used"""
    found: list[LoggedRoutes] = field(default_factory=list)


@dataclass(frozen=True)
class RowLog:
    """The log of a step as a micro-batch writes to it."""

    log: RouteLog
    rows: np.ndarray
    """[B] among those of this data rank"""
    first: int
    """the first position of this context rank"""

    def layer_log(self, layer: str, first: int) -> "LayerLog":
        """The log as one layer writes to it, whose positions are those from `first` of this context rank on."""
        return LayerLog(self.log, layer, self.rows, self.first + first)


@dataclass(frozen=True)
class LayerLog:
    """The log of a step as one layer writes a micro-batch to it."""

    log: RouteLog
    layer: str
    rows: np.ndarray
    first: int

    def replayed(self, preferences_TE: Tensor, experts_TK: Tensor, counts: bool) -> Tensor:
        """The experts to use. `counts`: whether this pass is logged, not one that recomputes it."""
        if counts:
            preferences, experts = (self._by_row(x).cpu().numpy().copy() for x in (preferences_TE, experts_TK))
            self.log.found.append(LoggedRoutes(self.layer, self.rows, self.first, preferences, experts))
        if self.log.replay is None:
            return experts_TK
        positions = slice(self.first, self.first + len(experts_TK) // len(self.rows))
        given_BSK = torch.from_numpy(self.log.replay[self.layer][self.rows, positions])
        return given_BSK.transpose(0, 1).flatten(0, 1).to(experts_TK.device)

    def _by_row(self, values: Tensor) -> Tensor:
        by_row: Tensor = values.detach().unflatten(0, (-1, len(self.rows))).transpose(0, 1)
        return by_row
