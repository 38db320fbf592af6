"""Bound on how far rounding in gradients may take Muon's updates.

Newton-Schulz steps amplify. X = G / |G| differs by at most e where G differs by e, relative to its norm; each step
multiplies a small difference by at most its slope at zero, a, so that five of torch's steps make of it at most
a^5 e = 485 e: relative to the norm of an update, about 0.9 sqrt(rank), that is 485 e / |U|. (Measured: 1 to 135 e.)
So what a layout's own gradients explain of a difference is known. A layout that orthogonalizes anything but the
declared matrices is off by tens of percent.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from pretrain.config.optimizer import MuonOptimizer
from pretrain.config.run_config import RunConfig
from pretrain.model_spec.generator import run_specs
from pretrain.model_spec.mup import muon_rate
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.verify.observation import TensorShard

Arrays = Mapping[str, np.ndarray]


class Amplification:
    """Differences of the momentum of matrices on one layout, from the reference's, step by step."""

    def __init__(self, config: RunConfig) -> None:
        self.settings = config.optimizer if isinstance(config.optimizer, MuonOptimizer) else None
        self._blocks: dict[str, list[np.ndarray]] = {}
        self._specs: dict[str, ParameterSpec] = {}
        if self.settings is not None:
            for spec in run_specs(config):
                if spec.blocks is not None and spec.alias_of is None:
                    rows = spec.blocks.rows_of(prod(spec.shape[:-1]), self.settings.per_head)
                    self._blocks[spec.name] = list(rows.values())
                    self._specs[spec.name] = spec
        self._momentum: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._updates: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether Muon orthogonalizes the updates of this parameter."""
        return name in self._blocks

    def rate_factor(self, name: str) -> float:
        """Rate of a parameter, and of its weight decay, relative to the step's."""
        return 1.0 if self.settings is None or name in self else self.settings.adamw_rate_factor

    def restart(self) -> None:
        """Forgets the momentum, before another layout is judged."""
        self._momentum.clear()

    def add(self, expected: Arrays, found: Sequence[TensorShard]) -> None:
        """Counts the gradients of a step."""
        if self.settings is None:
            return
        complete = {name: expected[name].copy() for name in self._blocks if name in expected}
        for shard in found:
            if shard.name in complete:
                shard.of(complete[shard.name])[...] = shard.value
        momentum, nesterov = self.settings.momentum, self.settings.nesterov
        for name, value in complete.items():
            gradients = expected[name], value - expected[name]
            before = self._momentum.get(name, (np.zeros_like(value), np.zeros_like(value)))
            m, d = (momentum * a + (1 - momentum) * b for a, b in zip(before, gradients, strict=True))
            self._momentum[name] = m, d
            u = tuple(momentum * a + (1 - momentum) * b for a, b in zip((m, d), gradients, strict=True))
            self._updates[name] = (u[0], u[1]) if nesterov else (m, d)

    def explained(self, name: str, learning_rate: float) -> float:
        """Norm of the largest difference of the parameter's update that the gradients explain."""
        assert self.settings is not None
        spec, total = self._specs[name], 0.0
        value, difference = (part.reshape(-1, part.shape[-1]) for part in self._updates[name])
        for rows in self._blocks[name]:
            norm = float(np.linalg.norm(value[rows]))
            apart = float(np.linalg.norm(difference[rows])) / norm if norm else 0.0
            rate = learning_rate * spec.lr_mult * muon_rate(self.settings, spec, len(rows), value.shape[1])
            total += (self.settings.amplification * apart * rate) ** 2
        return float(np.sqrt(total))
