"""Errors of paths that a config of another folder may hold say what a relative one is relative to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from data_pipeline.dataset.manifest import DatasetManifest
from data_pipeline.errors import DataError
from data_pipeline.labelled.file_rows import find_rows
from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.checkpoint.directory import locate
from pretrain.errors import ConfigError


@pytest.mark.parametrize("opened", [DatasetManifest.load, find_rows, load_tokenizer, locate])
def test_a_relative_path_that_is_not_there_names_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[Path], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((DataError, ConfigError), match=rf"some/where.* \(relative to {tmp_path}\)"):
        opened(Path("some/where"))
    with pytest.raises((DataError, ConfigError)) as caught:
        opened(tmp_path / "some/where")
    assert "relative to" not in str(caught.value)
