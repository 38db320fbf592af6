"""`pretrain verify` of CANINE, whose stream has two lengths: one run on every kind of layout, in fp32 and bf16."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.families import family_config
from tests.helpers.planted import check_sound, table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(("family", "asked"), [("canine", False), ("canine-c", False), ("canine-c", True)])
def test_two_lengths_in_one_stream_are_the_same_run(family: str, asked: bool, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": {"binary_head": True}, "objective": {"next_sentence": True}} if asked else {}
    layouts = ["tp2pp2", "pp2+vp2", "dp2+zero1", "dp2+zero2", "pp2dp2+zero3"]
    check_sound(table(family_config(family, precision="bf16", **settings), tmp_path, layouts))
