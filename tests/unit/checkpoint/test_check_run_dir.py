"""A run's directory is its own: no dataset, no export, no folder that another run keeps."""

import os
from pathlib import Path

import pytest

from pretrain.checkpoint.check_run_dir import check_run_dir
from pretrain.checkpoint.directory import locate
from pretrain.errors import ConfigError


def run_in(directory: Path) -> Path:
    (directory / "checkpoints" / "step-00000003").mkdir(parents=True)
    (directory / "metrics.jsonl").write_text("{}\n")
    return directory


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("manifest.json", "holds a dataset"),
        ("mix.json", "holds a dataset"),
        ("config.json", "holds a model for transformers"),
        ("record.json", "is a checkpoint"),
    ],
)
def test_what_holds_something_else_is_refused(file: str, words: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(ConfigError, match=words):
        check_run_dir(tmp_path)


def test_a_folder_of_runs_and_the_folders_of_a_run_are_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path / "a")
    with pytest.raises(ConfigError, match="holds other runs, such as a"):
        check_run_dir(tmp_path)
    for inside in ("checkpoints", "checkpoints/step-00000003", "reports", "reports/new", "launch"):
        with pytest.raises(ConfigError, match=f"of the run {run}"):
            check_run_dir(run / inside)


def test_a_circle_of_links_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    (tmp_path / "file").write_text("")
    for path, words in (("one", "symbolic links"), ("one/run", "symbolic links"), ("file", "is a file")):
        with pytest.raises(ConfigError, match=words):
            check_run_dir(tmp_path / path)


def test_a_new_directory_one_with_other_files_and_one_of_the_run_itself_are_taken(tmp_path: Path) -> None:
    run = run_in(tmp_path / "runs" / "a")
    run_in(run / "inner")
    (run / "manifest.json").write_text("{}")
    (tmp_path / "config.yaml").write_text("")
    for path in (tmp_path, tmp_path / "runs" / "b", tmp_path / "not" / "yet", run):
        check_run_dir(path)


def test_the_folder_of_checkpoints_is_no_run_and_the_sentence_names_both(tmp_path: Path) -> None:
    run = run_in(tmp_path / "a")
    with pytest.raises(ConfigError) as refused:
        locate(run / "checkpoints")
    assert f"name the run ({run})" in str(refused.value)
    assert str(run / "checkpoints" / "step-00000003") in str(refused.value)
    assert os.listdir(run / "checkpoints") == ["step-00000003"]
