"""What a build does for each file, however small: they may be many."""

from __future__ import annotations

import cProfile
import json
import os
import pstats
from pathlib import Path

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.build.inputs import file_state, find_sources

_DOCUMENTS = 400


def _calls(folder: Path, files: int) -> int:
    """Function calls of a build of the same documents in `files` files; unlike seconds, always the same."""
    (folder / "in").mkdir(parents=True)
    lines = [json.dumps({"text": f"the words of document {number}"}) + "\n" for number in range(_DOCUMENTS)]
    for number in range(files):
        (folder / "in" / f"{number:03}.jsonl").write_text("".join(lines[number::files]))
    tokenizer = {"type": "bytes"}
    config = BuildConfig(input=str(folder / "in"), output=folder / "out", tokenizer=tokenizer, workers=1)  # type: ignore[arg-type]
    with cProfile.Profile() as profile:
        build(config)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_a_file_costs_few_calls_besides_its_documents(tmp_path: Path) -> None:
    _calls(tmp_path / "first", 1)  # imports
    few, many = _calls(tmp_path / "few", 100), _calls(tmp_path / "many", 400)
    print(f"{(many - few) / 300:.0f} calls a file")
    assert many - few < 400 * 300


def test_files_are_called_by_where_they_really_lie(tmp_path: Path) -> None:
    for name in ("real/a.txt", "real/sub/b.txt", "elsewhere/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "linked").symlink_to("real")
    (tmp_path / "real/link.txt").symlink_to("../elsewhere/c.txt")
    config = BuildConfig(input=str(tmp_path / "linked"), output=tmp_path / "out")
    inputs = find_sources(config)[0].inputs
    assert [file.name for file in inputs] == ["real/a.txt", "elsewhere/c.txt", "real/sub/b.txt"]
    assert [file.state for file in inputs] == [file_state(file.path) for file in inputs]
    assert inputs[1].state[2] == os.stat(tmp_path / "elsewhere/c.txt").st_ino
