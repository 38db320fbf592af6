"""`pretrain verify` of Shaw's positions: one run on every kind of layout, in fp32 and bf16."""

from pathlib import Path

import pytest

from tests.helpers.families import family_config
from tests.helpers.planted import check_sound, table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_relative_keys_and_values_are_the_same_run(tmp_path: Path) -> None:
    layouts = ("tp2pp2+sp", "pp2+vp2", "cp2", "tp2+sp", "dp2", "dp2+zero2", "pp2dp2+zero3")
    rows = table(family_config("shaw", precision="bf16"), tmp_path, layouts)
    check_sound(rows)
    assert {row.job.config.precision for row in rows} == {"fp32", "bf16"}
