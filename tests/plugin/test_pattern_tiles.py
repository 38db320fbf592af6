"""A pattern of a package is computed by tiles of its own, which are held against its rule."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretrain.attention.patterns import registry
from pretrain.attention.patterns.registry import tiles_of
from pretrain.attention.patterns.tiles import AttentionTile, band, total
from pretrain.errors import ConfigError
from tests.plugin.conftest import PACKAGE
from tests.unit.attention.test_patterns import assert_alike, attend_by_pattern, tensors, under_mask

sys.path.insert(0, str(PACKAGE))
from example_plugin.pattern import Sinks
from example_plugin.pattern_tiles import sinks

ROOT = Path(__file__).parents[2]
LENGTH = 700
SINKS = Sinks(sinks=3, window=40)


@pytest.fixture(autouse=True)
def _of_no_other_test() -> Iterator[None]:
    tiles_of.cache_clear()
    yield
    tiles_of.cache_clear()


def _declared(monkeypatch: pytest.MonkeyPatch, make: Callable[..., Iterator[AttentionTile]]) -> None:
    monkeypatch.setattr(registry, "PATTERN_TILES", {"sinks": make})


def test_attention_by_them_is_that_under_the_mask_with_less_work(monkeypatch: pytest.MonkeyPatch) -> None:
    (dense,) = tiles_of(SINKS, LENGTH, True)
    tiles_of.cache_clear()
    _declared(monkeypatch, sinks)
    tiles = tiles_of(SINKS, LENGTH, True)
    assert total(tiles) < 0.3 * total([dense])
    inputs = tensors(LENGTH, LENGTH)
    query, key = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    shown = (key <= query) & ((query - key < 40) | (key < 3))
    assert_alike(attend_by_pattern(SINKS, *inputs), under_mask(*inputs, shown), inputs)


def test_an_installed_package_is_asked_for_them(plugin: Path) -> None:
    line = "from example_plugin.pattern import Sinks; from pretrain.attention.patterns.registry import tiles_of; "
    line += f"print(len(tiles_of(Sinks(sinks=3, window=40), {LENGTH}, True)))"
    environment = os.environ | {"PYTHONPATH": f"{plugin}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, env=environment)
    assert int(done.stdout) > 1, done.stderr


def _too_few(settings: Any, length: int, before: bool) -> Iterator[AttentionTile]:
    yield from band(np.arange(length)[None], settings.window - 1, 0)


def _twice(settings: Any, length: int, before: bool) -> Iterator[AttentionTile]:
    yield from sinks(settings, length, before)
    yield AttentionTile.of(np.array([[length - 1]]), np.array([[0]]), np.ones((1, 1, 1), bool))


def _too_many(settings: Any, length: int, before: bool) -> Iterator[AttentionTile]:
    yield from sinks(settings.model_copy(update={"window": settings.window + 1}), length, before)


@pytest.mark.parametrize("length", [LENGTH, 5000])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_too_few, r"query at 40 meets the key at 0 0 times .*, and 1 times by its rule"),
        (_twice, r"the key at 0 2 times .*, and 1 times by its rule"),
        (_too_many, r"query at 43 meets the key at 3 1 times .*, and 0 times by its rule"),
    ],
)
def test_tiles_of_another_attention_are_refused(
    make: Callable[..., Iterator[AttentionTile]], said: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _declared(monkeypatch, make)
    with pytest.raises(ConfigError, match=said):
        tiles_of(SINKS, length, True)


def test_tiles_of_many_positions_are_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    _declared(monkeypatch, sinks)
    assert len(tiles_of(SINKS, 9000, True)) > 1
