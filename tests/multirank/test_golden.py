"""Every family trains as it did when its curve was recorded (golden/*.json, golden_record.py).

Which samples a step sees, and what they say, is exact anywhere. Losses and gradient norms are bit-equal on the kind of
machine that recorded them (torch's version, the CPU's model and its instructions). On another, sums are taken in
another order: there they are compared within what that makes of them, 1e-6 of the value in fp32 (measured with other
instructions on one machine: 2.5e-7) and 2e-3 in bf16 (7e-4).
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.golden import CASES, build_datasets, train_case
from tests.helpers.machine import machine
from tests.multirank.golden_record import ABOUT_DATA, FOLDER

TOLERANCE, BF16_TOLERANCE = 1e-6, 2e-3
KINKED_TOLERANCE = 1e-3
"""of ReLU's cases on other machines: rounding decides on which side of the kink an input lies that is nearly zero"""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    build_datasets(folder)
    return folder


ANOTHER_OF_ITS_KIND = ("gpt", "gpt-bf16", "roberta", "transformer", "bart")
"""Cases that share a model among ranks as another does, too: on one rank they are tried with every test run."""


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=pytest.mark.slow)
        if name in ANOTHER_OF_ITS_KIND and layout != "one rank"
        else (name, layout)
        for name, case in CASES.items()
        for layout in case.layouts
    ],
)
def test_a_curve_is_the_recorded_one(name: str, layout: str, datasets: Path) -> None:
    recorded = json.loads((FOLDER / f"{name}.json").read_text())
    found = train_case(name, layout, datasets)
    for key in ABOUT_DATA:
        assert found[key] == recorded[key], key
    for key, values in recorded["curves"][layout].items():
        if recorded["machine"] == machine():
            assert found[key] == values, f"{key}: {_departure(found[key], values):.1e} of it off"
        else:
            tolerance = BF16_TOLERANCE if "bf16" in name else KINKED_TOLERANCE if name == "transformer" else TOLERANCE
            assert _departure(found[key], values) <= tolerance, key


def _departure(found: list[float], recorded: list[float]) -> float:
    """The largest, as a part of the value."""
    return float(np.max(np.abs(np.divide(found, recorded) - 1)))


def test_every_record_is_of_a_case() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == CASES.keys()
