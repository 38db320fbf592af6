"""What is stored of the fit, on measurements that others published: skipped where the table is absent."""

from pathlib import Path

import numpy as np
import pytest

from pretrain.plan.estimate.constants import constants, fitted_stacks
from pretrain.plan.estimate.held import held_bytes
from tools.fit_plan.fit import predicted, unseen
from tools.fit_plan.published import PublishedSteps, load_steps


@pytest.fixture(scope="module")
def rows() -> PublishedSteps:
    path = Path(__file__).parents[4] / "shared" / "data" / "reference" / "throughput_rows.csv"
    if not path.exists():
        pytest.skip("no table of published steps beside the repository")
    return load_steps(path)


def _factors() -> dict[str, float]:
    return {name: stack.factor for name, stack in fitted_stacks().items()}


def test_steps_are_as_long_as_published(rows: PublishedSteps) -> None:
    ran = rows.take(rows.fits)
    off = np.abs(predicted(ran, constants(), _factors()) / ran.seconds - 1)
    assert np.median(off) < 0.05
    assert np.quantile(off, 0.9) < 0.16
    assert np.mean(off < 0.1) > 0.8


def test_what_ran_out_of_memory_is_told_from_what_ran(rows: PublishedSteps) -> None:
    fits = held_bytes(rows.workload, constants()).fullest <= rows.memory_bytes
    assert np.mean(fits == rows.fits) > 0.9
    assert np.mean(fits[rows.fits]) > 0.9
    assert np.mean(~fits[~rows.fits]) > 0.9


@pytest.mark.slow
def test_models_that_a_fit_has_not_seen_are_not_far_off(rows: PublishedSteps) -> None:
    ran = rows.take(rows.fits)
    off = np.abs(unseen(ran, ran.model, constants().values))
    assert np.median(off) < 0.05
    assert np.quantile(off, 0.9) < 0.16
