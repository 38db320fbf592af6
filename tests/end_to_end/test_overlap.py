"""From a build that looks for an evaluation's examples to the report of a run on it: build, train, eval."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from tests.end_to_end.conftest import write_config
from tests.helpers import command

DIRTY = 5


@pytest.fixture(scope="module")
def questions(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with LAMBADA's file: passages that no text holds, but for one that is in `text`."""
    folder = tmp_path_factory.mktemp("questions")
    passages = [" ".join(f"no{number}such{place}" for place in range(15)) for number in range(12)]
    passages[DIRTY] = " ".join(text.read_text().split()[500:520])
    (folder / "lambada_test.jsonl").write_text("".join(json.dumps({"text": p}) + "\n" for p in passages))
    return folder


@pytest.fixture(scope="module")
def data(text: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("searched") / "reference"
    step = {"name": "decontaminate", "against": str(questions / "*.jsonl")}
    assert build(BuildConfig(input=str(text), output=output, tokenizer={"type": "bytes"}, steps=[step], workers=1))
    return output


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_config(data, tmp_path_factory.mktemp("trained"))
    sizes = ("model.sequence_length=128", "train.steps=2", "evaluate.every_steps=2", "checkpoint.every_steps=2")
    done = command.run("train", path, *sizes, "schedule.warmup_tokens=0")
    assert done.returncode == 0, done.stderr
    return path.parent / "run"


def _overlap(run: Path, questions: Path, out: Path, *more: str) -> Any:
    tasks = ("--tasks", "lambada_openai,arithmetic_1dc", "--limit", "12", "--shots", "0")
    files = questions / "single_digit_three_ops.jsonl"
    files.write_text("".join(f'{{"context": "Q: {n}", "completion": " {n}"}}\n' for n in range(12)))
    done = command.run("eval", run, *tasks, "--data", questions, "--out", out, *more)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "report.json").read_text())["overlap"]


def test_the_report_tells_clean_examples_from_dirty_ones(
    run: Path, data: Path, questions: Path, tmp_path: Path
) -> None:
    found = _overlap(run, questions, tmp_path / "out")
    assert found["unknown"] is None
    task = found["tasks"]["lambada_openai"]
    assert [task[name] for name in ("documents", "dirty", "clean", "unknown")] == [12, 1, 11, 0]
    (facts,) = task["sets"]
    assert (facts["dataset"], facts["name"], facts["ngram"]) == (str(data), "lambada_test", 13)
    parts = task["shots"]["0"]
    assert [parts[name]["documents"] for name in ("all", "clean", "dirty")] == [12, 11, 1]
    assert found["tasks"]["arithmetic_1dc"]["unknown"] == 12, "never clean where nobody has looked"

    elsewhere = data.rename(data.with_name("elsewhere"))
    gone = _overlap(run, questions, tmp_path / "gone")
    assert gone["unknown"].startswith("the training data cannot be read now: ")
    assert gone["tasks"]["lambada_openai"]["unknown"] == 12
    moved = _overlap(run, questions, tmp_path / "moved", f"data.path={elsewhere}")
    elsewhere.rename(data)
    assert moved["tasks"]["lambada_openai"] == {**task, "sets": [{**facts, "dataset": str(elsewhere)}]}


@pytest.mark.slow
def test_a_dataset_that_is_named_is_searched_as_it_is(run: Path, data: Path, questions: Path, tmp_path: Path) -> None:
    """This one was cleaned when it was built, and no build looked for problems of arithmetic."""
    found = _overlap(run, questions, tmp_path / "out", "--overlap", str(data))["tasks"]
    for task in ("lambada_openai", "arithmetic_1dc"):
        assert [found[task][name] for name in ("documents", "dirty", "unknown")] == [12, 0, 0]
        assert [one["dataset"] for one in found[task]["sets"]] == [str(data)]
        assert found[task]["shots"]["0"]["clean"]["documents"] == 12


def test_other_data_than_the_run_s_says_nothing_of_it(run: Path, text: Path, questions: Path, tmp_path: Path) -> None:
    (tmp_path / "less.txt").write_text(text.read_text()[:100_000])
    step = {"name": "decontaminate", "against": str(questions / "lambada*.jsonl")}
    config = {"input": str(tmp_path / "less.txt"), "tokenizer": {"type": "bytes"}, "steps": [step], "workers": 1}
    assert build(BuildConfig(**config, output=tmp_path / "less", validation_fraction=0.3))
    found = _overlap(run, questions, tmp_path / "out", f"data.path={tmp_path / 'less'}")
    assert found["unknown"] == "the data that the config names is not what the checkpoint was trained on"
    assert not found["tasks"]["lambada_openai"]["shots"]
