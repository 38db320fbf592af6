"""Names in a run's directory, and that no other module spells them."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pretrain.run_dir.paths import (
    RunDir,
    checkpoint_name,
    checkpoint_step,
    complete_checkpoints,
    incomplete_checkpoints,
    run_of,
    runs_below,
    runs_within,
)
from tests.helpers.import_law import ROOT, modules
from tests.helpers.sources import nodes

OWNER = "pretrain.run_dir"
FILES = ("config.yaml", "metrics.jsonl", "events.jsonl", "heartbeat.json", "mlflow_run_id", "checkpoints", "hangs")
SPELLED = re.compile(rf"(^|/)({'|'.join(map(re.escape, FILES))})(/|$)|(^|/)step-($|[*%0-9])")
NOT_OF_A_RUN = {("data_pipeline.build.passes", "step-")}  # folders of a build's steps
STORE_KEYS = {("pretrain.verify.run", "checkpoints")}  # a key in the store of ranks


def test_checkpoint_names_round_trip() -> None:
    assert checkpoint_name(400) == "step-00000400"
    for step in (0, 400, 123_456_789):
        assert checkpoint_step(checkpoint_name(step)) == step
    for name in ("step-00000400.tmp", "step-00000400.damaged", "step-", "step-4x", "other"):
        assert checkpoint_step(name) is None


def test_complete_checkpoints_are_sorted_by_step(tmp_path: Path) -> None:
    assert complete_checkpoints(tmp_path / "none") == []
    for name in ("step-100000000", "step-99999999", "step-00000005.tmp", "step-00000006.damaged"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000001").write_text("a file is no checkpoint")
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["step-99999999", "step-100000000"]
    assert [path.name for path in incomplete_checkpoints(tmp_path)] == ["step-00000005.tmp"]


def test_runs_in_a_folder_are_sorted_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        RunDir(tmp_path / name).config.touch()
    (tmp_path / "c").mkdir()
    assert runs_below(tmp_path) == [tmp_path / "a", tmp_path / "b"]


def test_a_folder_that_cannot_be_read_does_not_hide_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "checkpoints").mkdir(parents=True)
    RunDir(tmp_path / "a").config.touch()
    closed, listed = tmp_path / "b", os.scandir
    closed.mkdir()
    errors: list[OSError] = []
    assert runs_within(tmp_path, errors.append) == [tmp_path / "a"]
    for name in ("none", "a/config.yaml"):
        assert runs_within(tmp_path / name, errors.append) == []
    assert not errors

    def scandir(folder: str) -> Any:
        if Path(folder) == closed:
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr("os.scandir", scandir)
    assert runs_within(tmp_path, errors.append) == [tmp_path / "a"]
    assert [error.filename for error in errors] == [str(closed)]


def test_the_run_of_a_checkpoint_is_found_through_links(tmp_path: Path) -> None:
    run = RunDir(tmp_path.resolve() / "run")
    run.checkpoint(5).mkdir(parents=True)
    (tmp_path / "newest").symlink_to(run.checkpoint(5))
    assert run_of(run.checkpoint(5)).path == run_of(tmp_path / "newest").path == run.path


def test_hang_folders_are_found_by_attempt(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for step, attempt in ((12, "aa"), (11, "aa"), (11, "bb")):
        run.hang_folder(step, attempt).mkdir(parents=True)
    assert run.hang_folders("aa") == [run.hang_folder(11, "aa"), run.hang_folder(12, "aa")]


@pytest.mark.parametrize(
    "text", ["config.yaml", "/metrics.jsonl", "checkpoints", "step-", "runs/book/checkpoints/", "step-*.tmp"]
)
def test_a_spelled_name_is_recognized(text: str) -> None:
    assert SPELLED.search(text)


@pytest.mark.parametrize("text", ["it has no config.yaml", "one-step-", "no step", "step-by", "the checkpoints"])
def test_prose_is_no_path(text: str) -> None:
    assert not SPELLED.search(text)


def test_only_run_dir_spells_the_names_of_a_run() -> None:
    found = [
        f"{module}:{line}: {text!r}"
        for module, path in modules().items()
        if not module.startswith(OWNER)
        for line, text in _texts((ROOT / path).read_text(encoding="utf-8"))
        if SPELLED.search(text) and (module, text) not in NOT_OF_A_RUN | STORE_KEYS
    ]
    assert not found, "paths of a run belong to pretrain.run_dir.paths"


def _texts(source: str) -> Iterator[tuple[int, str]]:
    """Line and value of each string, also of the parts of f-strings, without docstrings."""
    docstrings = {node.value for node in nodes(source) if isinstance(node, ast.Expr)}
    for node in nodes(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.lineno, node.value
