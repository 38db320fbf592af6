"""Runs that follow a law, and published ones where they lie beside the repository."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pretrain.scaling.law import Law, law_of
from pretrain.scaling.points import Points, RunPoint

Made = Callable[..., Points]


def chinchilla_loss(parameters: float, tokens: float) -> float:
    return 1.8 + 480 / parameters**0.35 + 2100 / tokens**0.37


@pytest.fixture(scope="session")
def made() -> Made:
    """Points of `loss`, with a noise of so much."""

    def make(
        loss: Callable[[float, float], float] = chinchilla_loss,
        sizes: tuple[float, ...] = (1e8, 2e8, 4e8, 8e8),
        ratios: tuple[float, ...] = (10, 20, 40),
        noise: float = 0.0,
    ) -> Points:
        draw = np.random.default_rng(3)
        return Points(
            tuple(
                RunPoint(
                    parameters=n,
                    tokens=r * n,
                    loss=loss(n, r * n) * float(np.exp(noise * draw.normal())),
                    flops=6 * n * r * n,
                    name=f"{n:.0e} x{r}",
                )
                for n in sizes
                for r in ratios
            )
        )

    return make


@pytest.fixture(scope="session")
def reference() -> Path:
    """Tables of published runs."""
    folder = Path(__file__).parents[4] / "shared" / "data" / "reference"
    if not folder.is_dir():
        pytest.skip("no published runs beside the repository")
    return folder


@pytest.fixture(scope="session")
def law(made: Made) -> Law:
    """Fit of points without noise."""
    return law_of(made(), "made", samples=0)
