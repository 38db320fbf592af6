"""`pretrain verify` of Linformer: one run on two ranks of each kind; `test_linformer.py` has more layouts."""

from pathlib import Path

import pytest

from tests.helpers.families import family_config
from tests.helpers.planted import check_sound, table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_keys_projected_along_the_sequence_are_the_same_run(tmp_path: Path) -> None:
    model = {"attention": {"pattern": [{"name": "linformer", "projected_length": 8}]}}
    check_sound(table(family_config("roberta", model=model), tmp_path, ("tp2+sp", "pp2")))
