"""Triton's kernels in its interpreter: the same run as with torch's own operations, on any layout."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.breadth import only, slow
from tests.helpers.families import family_config
from tests.helpers.planted import check_sound, table
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import tiny_config
from tests.multirank.test_output_linear import CASES, LAYOUTS, Found, assert_like, judged

pytest.importorskip("triton", reason="triton has no wheel for this system")

TRITON: dict[str, Any] = {"run": {"kernels": "triton"}}
_SMOOTHED = "a tied head, a cap, smoothing, drift"


@pytest.mark.parametrize("layout", only(["tensor 2, sequence"], LAYOUTS))
@pytest.mark.parametrize("case", [_SMOOTHED, *map(slow, [name for name in CASES if name != _SMOOTHED])])
def test_loss_terms_gradients_and_scores_are_those_of_plain_kernels(case: str, layout: str) -> None:
    family, settings = CASES[case]
    (expected,) = run_ranks(1, judged, family, settings, {}, 10**6)
    world, parallel = LAYOUTS[layout]
    found = run_ranks(world, judged, family, {**settings, **TRITON}, parallel, 20)
    assert_like(found[-1], expected, 1e-5)


def _errors(found: Found, exact: Found) -> tuple[float, float]:
    """(root mean square of the relative errors of all gradients, of the errors of scores)"""
    errors = [
        np.linalg.norm(found.gradients[name] - expected) / np.linalg.norm(expected)
        for name, expected in exact.gradients.items()
    ]
    scores = found.log_probability - exact.log_probability
    return float(np.sqrt(np.mean(np.square(errors)))), float(np.sqrt(np.mean(np.square(scores))))


@pytest.mark.parametrize(
    ("family", "precision"),
    only([("llama", "bf16")], list(product(["llama", "bert", "t5", "gemma2"], ["bf16", "fp16"]))),
)
def test_in_half_precision_they_err_no_more_than_torch_s_own(family: str, precision: str) -> None:
    exact, plain, found = (
        run_ranks(1, judged, family, settings, {}, 10**6, numbers)[0]
        for settings, numbers in (({}, "fp32"), ({}, precision), (TRITON, precision))
    )
    for error, of_plain in zip(_errors(found, exact), _errors(plain, exact), strict=True):
        assert 0 < error < 1.1 * of_plain


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("family", "layouts"),
    [("gpt", ["tp2+sp", "pp2", "cp2", "dp2+zero3"]), ("bert", ["tp2+sp"]), ("t5", ["pp2"]), ("llama", ["cp2"])],
)
def test_verify_finds_the_same_run_on_every_layout(family: str, layouts: list[str], tmp_path: Path) -> None:
    settings = {"precision": "bf16", **TRITON}
    config = tiny_config(**settings) if family == "gpt" else family_config(family, **settings)
    rows = table(config, tmp_path, layouts)
    check_sound(rows)
    assert {row.job.config.run.kernels for row in rows} == {"triton"}
