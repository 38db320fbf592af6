"""`pretrain verify` of DeBERTa: one run on every kind of layout, in fp32 and bf16."""

from pathlib import Path

import pytest

from tests.helpers.families import family_config
from tests.helpers.planted import check_sound, table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
PARTS = {
    "deberta": "disentangled attention, projections of distances of its own",
    "deberta-decoder": "distances in buckets with the projections of tokens, a mask decoder",
}


@pytest.mark.parametrize("family", PARTS)
def test_a_model_with_these_parts_is_the_same_run(family: str, tmp_path: Path) -> None:
    layouts = ("tp2pp2+sp", "cp2", "tp2+sp", "dp2", "dp2+zero2", "pp2dp2+zero3")  # of chunks, each would have a copy
    rows = table(family_config(family, precision="bf16"), tmp_path, layouts)
    check_sound(rows)
    assert {row.job.config.precision for row in rows} == {"fp32", "bf16"}
