"""Data that layouts read of the reference in place of their own: a generator's samples, and routes of layers of
experts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from pretrain.config.run_config import RunConfig
from pretrain.verify.observation import Observation
from pretrain.verify.routes import Routes, reference_routes
from pretrain.verify.samples import SampleReplay


@dataclass(frozen=True)
class RouteReplay:
    """The reference's routes."""

    steps: dict[int, Routes]
    """routes of the global batch, by step"""
    scored: Routes
    """routes of the rows that were scored"""


@dataclass(frozen=True)
class Replay:
    """Samples and routes that the reference read; None: there is no such thing in the model."""

    samples: SampleReplay | None
    routes: RouteReplay | None

    @classmethod
    def of(cls, config: RunConfig, observations: Sequence[Observation]) -> "Replay":
        """The samples and routes in the observations of the reference."""
        return cls(SampleReplay.of(observations), _routes(config, observations))


def _routes(config: RunConfig, observations: Sequence[Observation]) -> RouteReplay | None:
    experts, positions = config.model.experts, config.model.sequence_length
    if experts is None:
        return None
    steps = {one.step: reference_routes(one.logged, experts, positions) for one in observations if one.logged}
    scored = [part for one in observations for score in one.scores for part in score.logged]
    return RouteReplay(steps, reference_routes(scored, experts, positions))


def share(replay: Replay | None) -> Replay | None:
    """Rank 0's, on every rank. Collective."""
    held: list[Replay | None] = [replay]
    dist.broadcast_object_list(held)
    return held[0]
