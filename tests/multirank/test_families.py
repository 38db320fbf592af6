"""Every family trains alike on every layout."""

from typing import Any

import numpy as np
import pytest

from tests.helpers.families import FAMILIES, family_config, train_family
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine

STEPS = 4
TOLERANCE = 1e-5
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2pp2": {"tensor": 2, "pipeline": 2},
    "tp2pp2+sp": {"tensor": 2, "pipeline": 2, "sequence": True},
    "pp4": {"pipeline": 4},
    "pp2dp2+vp2": {"pipeline": 2, "virtual": 2},
    "tp2cp2": {"tensor": 2, "context": 2},
    "dp4+recompute": {"recompute": "full"},
    "tp2dp2+sp+selective": {"tensor": 2, "sequence": True, "recompute": "selective"},
}


def _curves(family: str, parallels: list[dict[str, Any]], sections: dict[str, Any]) -> list[Any]:
    found = []
    for parallel in parallels:
        engine = build_engine(family_config(family, parallel=parallel, **sections))
        found.append(train_family(engine, range(1, STEPS + 1)))
        meet_again()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_alike_on_every_layout(family: str) -> None:
    expected = np.array(run_ranks(1, _curves, family, [{}], {})[0][0])
    assert expected[-1, 0] < expected[0, 0]
    curves = run_ranks(4, _curves, family, list(LAYOUTS.values()), {})[0]
    for name, curve in zip(LAYOUTS, curves, strict=True):
        assert np.abs(np.array(curve) - expected).max() <= TOLERANCE, (name, curve, expected.tolist())
