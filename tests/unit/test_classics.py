"""An old family is a folder: without it everything else is as before."""

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pretrain.config.classics import declared
from pretrain.config.families import CAPABILITIES
from tests.helpers.breadth import only

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent.name for path in (ROOT / "pretrain" / "classics").glob("*/__init__.py"))


def _names(folder: str, group: str) -> set[str]:
    return set(import_module(f"pretrain.classics.{folder}").DECLARES.get(group, {}))


WITH_PARTS = [folder for folder in FOLDERS if _names(folder, "pretrain.part_keys")]


def _run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(directory)}
    command = [sys.executable, "-m", "pretrain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory)


def _keys(directory: Path) -> dict[str, str]:
    """What `pretrain keys` prints, by key."""
    done = _run(directory, "keys")
    assert done.returncode == 0, done.stderr
    blocks: dict[str, str] = {}
    key = ""
    for line in done.stdout.splitlines():
        key = key if line.startswith(" ") else line
        blocks[key] = f"{blocks.get(key, '')}{line}\n"
    return blocks


@pytest.mark.parametrize("folder", only(WITH_PARTS[:1], FOLDERS))
def test_without_its_folder_its_keys_and_names_alone_are_gone(folder: str, tmp_path: Path) -> None:
    for package in ("pretrain", "data_pipeline"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    shutil.rmtree(tmp_path / "pretrain" / "classics" / folder)
    families, parts = _names(folder, "pretrain.families"), _names(folder, "pretrain.part_keys")
    assert families | parts | _names(folder, "pretrain.hf_classes"), "a folder declares something"
    before, after = _keys(ROOT), _keys(tmp_path)
    gone = before.keys() - after.keys()
    assert {".".join(key.split(".")[:2]) for key in gone} == {f"model.{part}" for part in parts}
    listed, left = ([word.rstrip(",;") for word in keys["model.family"].split()] for keys in (before, after))
    assert left == [word for word in listed if word not in families]
    assert {key: text for key, text in before.items() if key in after and key != "model.family"} == {
        key: text for key, text in after.items() if key != "model.family"
    }


def test_a_folder_has_what_a_family_needs_and_names_of_its_own() -> None:
    for group in ("pretrain.families", "pretrain.part_keys", "pretrain.hf_classes"):
        names = [name for folder in FOLDERS for name in _names(folder, group)]
        assert sorted(names) == sorted(declared(group)), "two folders declare one name"
    for folder in FOLDERS:
        assert _names(folder, "pretrain.hf_classes") == _names(folder, "pretrain.hf_families")
        for family in _names(folder, "pretrain.families"):
            assert {family} <= _names(folder, "pretrain.family_parts")
            assert set(CAPABILITIES[family].parts) >= _names(folder, "pretrain.part_keys")
