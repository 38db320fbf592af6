"""An old family is a folder: without it everything else is as before."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pretrain.config.classics import declared
from pretrain.config.families import CAPABILITIES
from pretrain.config.parts.registry import PARTS
from tests.helpers.breadth import only

ROOT = Path(__file__).parents[2]
CHOICES = {
    "model.family": "pretrain.families",
    "model.positions.name": "pretrain.positions",
    "model.attention.pattern[].name": "pretrain.patterns",
}
"""keys whose values folders declare, with the groups"""
FOLDERS = sorted(path.parent.name for path in (ROOT / "pretrain" / "classics").glob("*/__init__.py"))


def _names(folder: str, group: str) -> set[str]:
    return set(import_module(f"pretrain.classics.{folder}").DECLARES.get(group, {}))


WITH_PARTS = [folder for folder in FOLDERS if _names(folder, "pretrain.part_keys")]


def _run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(directory)}
    command = [sys.executable, "-m", "pretrain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory)


def _keys(directory: Path) -> list[dict[str, Any]]:
    """What `pretrain keys` lists."""
    done = _run(directory, "keys", "--json")
    assert done.returncode == 0, done.stderr
    listed: list[dict[str, Any]] = json.loads(done.stdout)
    return listed


def _without(listed: list[dict[str, Any]], folder: str) -> Iterator[dict[str, Any]]:
    """The keys that are left without the parts and names of a folder."""
    gone = {key: _names(folder, group) for key, group in CHOICES.items()}
    for key in listed:
        if ".".join(key["dotted"].split(".")[:2]) in {f"model.{part}" for part in _names(folder, "pretrain.part_keys")}:
            continue
        only = [name for name in key["only"] if name not in gone.get(key["of"], ())]
        if only or not key["only"]:
            choices = [value for value in key["choices"] if value not in gone.get(key["dotted"], ())]
            yield {**key, "only": only, "choices": choices}


@pytest.mark.parametrize("folder", only(WITH_PARTS[:1], FOLDERS))
def test_without_its_folder_its_keys_and_names_alone_are_gone(folder: str, tmp_path: Path) -> None:
    for package in ("pretrain", "data_pipeline"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    shutil.rmtree(tmp_path / "pretrain" / "classics" / folder)
    before, after = _keys(ROOT), _keys(tmp_path)
    groups = (*CHOICES.values(), "pretrain.part_keys")
    assert (after != before) == any(_names(folder, group) for group in groups), "or it is a class of transformers alone"
    assert after == list(_without(before, folder))


def test_a_folder_has_what_a_family_needs_and_names_of_its_own() -> None:
    for group in (*CHOICES.values(), "pretrain.part_keys", "pretrain.hf_classes"):
        names = [name for folder in FOLDERS for name in _names(folder, group)]
        assert sorted(names) == sorted(declared(group)), "two folders declare one name"
    for folder in FOLDERS:
        assert _names(folder, "pretrain.hf_classes") == _names(folder, "pretrain.hf_families")
        families = _names(folder, "pretrain.families")
        assert families <= _names(folder, "pretrain.family_parts")
        keys = _names(folder, "pretrain.part_keys")
        assert keys <= {part for family in families for part in CAPABILITIES[family].parts} | {
            key for key in keys if PARTS[key].further_families
        }, "no family has the part"
