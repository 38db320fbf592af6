"""`pretrain eval fetch`: files as they come from the hub, and what is said where they don't."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import pytest
from lm_eval.tasks._yaml_loader import load_yaml

from pretrain.commands.eval import main
from pretrain.errors import ConfigError
from pretrain.evaluate.fetch import try_hub
from pretrain.evaluate.tasks.base import Sources
from pretrain.evaluate.tasks.registry import task_named
from tests.unit.evaluate.fakes import ToyTokenizer
from tests.unit.evaluate.task_lines import LINES

Called = list[tuple[str, str | None, str]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Called:
    """Stands for the hub: splits have the example lines of PIQA, or BLiMP's in two parts. Tells what was asked."""
    called: Called = []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def load_dataset(name: str, part: str | None, *, split: str) -> Iterator[dict[str, Any]]:
        called.append((name, part, split))
        if name == "aps/super_glue":
            raise ConnectionError("Couldn't reach the hub\nand more")
        lines, _ = LINES["blimp" if "blimp" in name else "piqa"]
        return iter([{**line, "part": part, "é": 1} for line in lines])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda name: ["adjunct_island", "wh_island"])
    return called


def test_a_task_reads_what_was_fetched_for_it(hub: Called, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "piqa", "--data", str(tmp_path / "new")]) == 0
    assert hub == [("baber/piqa", None, "validation"), ("baber/piqa", None, "train")]
    assert capsys.readouterr().out == "piqa: piqa_validation.jsonl has 1 lines\npiqa: piqa_train.jsonl has 1 lines\n"
    piqa = task_named("piqa")
    sources = Sources(tmp_path / "new", None, ToyTokenizer(), 0)  # type: ignore[arg-type]
    assert piqa.load(sources).documents[0].target == " hang it up."
    assert "é" in (tmp_path / "new" / "piqa_train.jsonl").read_text(encoding="utf-8"), "plain text, no escapes"


def test_all_parts_of_a_dataset_come_into_one_file(hub: Called, tmp_path: Path) -> None:
    assert main(["fetch", "blimp", "--data", str(tmp_path)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "blimp.jsonl").read_text().splitlines()]
    assert [line["part"] for line in lines] == ["adjunct_island", "wh_island"]


def test_a_file_that_is_there_is_left_alone(hub: Called, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "piqa_validation.jsonl").write_text("mine")
    (tmp_path / "piqa_train.jsonl.gz").write_text("mine")
    assert main(["fetch", "piqa", "--data", str(tmp_path)]) == 0
    assert hub == []
    assert capsys.readouterr().out.count("exists already") == 2
    assert (tmp_path / "piqa_validation.jsonl").read_text() == "mine"


def test_what_cannot_be_had_is_said_of_each_file_and_the_others_come(
    hub: Called, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", "boolq", "piqa", "--data", str(tmp_path)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == (
        f"boolq: {tmp_path}/boolq_validation.jsonl is not written: dataset aps/super_glue (part boolq, split "
        "validation) cannot be downloaded: Couldn't reach the hub"
    )
    assert said[2] == "piqa: piqa_validation.jsonl has 1 lines"
    assert said[4] == f"2 of 4 files could not be downloaded: copy them into {tmp_path} yourself"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["piqa_train.jsonl", "piqa_validation.jsonl"]


def test_a_row_that_is_no_json_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, split: iter([{"goal": "a"}, {"goal": float("nan")}]))
    assert main(["fetch", "piqa", "--data", str(tmp_path)]) == 1
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, split: iter([]))
    assert main(["fetch", "piqa", "--data", str(tmp_path)]) == 1
    assert "it holds no row" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_without_names_every_file_of_every_task_is_asked_for_once(hub: Called, tmp_path: Path) -> None:
    assert main(["fetch", "--data", str(tmp_path)]) == 1
    assert ("Rowan/hellaswag", None, "train") in hub
    assert ("wmt/wmt16", "ro-en", "test") in hub, "of which two tasks are made"
    assert len(hub) == len(set(hub)) > 60


def test_a_task_without_files_on_the_hub_is_refused_with_the_place_of_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task anagrams1 has no files on the hub: .*github\.com/openai/gpt-3"):
        main(["fetch", "anagrams1", "--data", str(tmp_path)])
    with pytest.raises(ConfigError, match="unknown task 'pica': did you mean piqa"):
        main(["fetch", "pica", "--data", str(tmp_path)])


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens to what is to be discarded
    try_hub()
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_offline_the_command_says_so_in_a_sentence_and_fails(tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    typed = [sys.executable, "-m", "pretrain", "eval", "fetch", "rte", "--data", str(tmp_path / "data")]
    done = subprocess.run(typed, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(
        f"rte: {tmp_path}/data/rte_validation.jsonl is not written: dataset aps/super_glue (part rte, split validation)"
        " cannot be downloaded: "
    )
    assert "Traceback" not in done.stdout + done.stderr


_LM_EVAL = Path(lm_eval.__file__).with_name("tasks")
_FILES = {
    "anli_r1": "anli/anli_r1", "anli_r2": "anli/anli_r2", "anli_r3": "anli/anli_r3", "arc_easy": "arc/arc_easy",
    "arc_challenge": "arc/arc_challenge", "blimp": "blimp/_template_yaml", "boolq": "super_glue/boolq/default",
    "cb": "super_glue/cb/default", "copa": "super_glue/copa/default", "coqa": "coqa/default", "drop": "drop/default",
    **{name: f"glue/{name}/default" for name in ("cola", "mnli", "mrpc", "qnli", "qqp", "sst2", "wnli")},
    "mnli_mismatch": "glue/mnli/mismatch", "swag": "swag/swag",
    "hellaswag": "hellaswag/hellaswag", "lambada_openai": "lambada/lambada_openai",
    "multirc": "super_glue/multirc/default", "nq_open": "nq_open/nq_open", "openbookqa": "openbookqa/openbookqa",
    "piqa": "piqa/piqa", "record": "super_glue/record/default", "rte": "super_glue/rte/default",
    "storycloze_2016": "storycloze/storycloze_2016", "triviaqa": "triviaqa/default", "webqs": "webqs/webqs",
    "wic": "super_glue/wic/default", "wikitext": "wikitext/wikitext", "winogrande": "winogrande/default",
    "wmt14-en-fr": "translation/wmt14_en-fr", "wmt14-fr-en": "translation/wmt14_fr-en",
    "wmt16-de-en": "translation/wmt16_de-en", "wmt16-en-de": "translation/wmt16_en-de",
    "wmt16-en-ro": "translation/wmt16_en-ro", "wmt16-ro-en": "translation/wmt16_ro-en",
    "wsc": "super_glue/wsc/default", "wsc273": "wsc273/default",
}  # fmt: skip
"""task -> lm-eval's file of it. Of others lm-eval has no file, or names the dataset in Python."""
_OTHER_PARTS = {"triviaqa": "rc.nocontext", "blimp": None}
"""tasks of which lm-eval takes another part, where ours is GPT-3's, or a part for each of its tasks: we take all"""


@pytest.mark.parametrize("name", _FILES)
def test_datasets_parts_and_splits_are_those_of_lm_eval(name: str) -> None:
    path = _LM_EVAL / _FILES[name]
    theirs = load_yaml(path if path.exists() else path.with_name(f"{path.name}.yaml"), resolve_func=False)
    splits = {theirs.get(f"{kind}_split") for kind in ("training", "validation", "test", "fewshot")}
    for file in task_named(name).fetch:
        assert file.dataset == theirs["dataset_path"]
        assert name in _OTHER_PARTS or file.config == theirs.get("dataset_name")
        assert theirs.get("dataset_name") == _OTHER_PARTS.get(name, file.config)
        assert file.split in splits
