"""The commands of docs/multitask.md, a few steps each: text and tasks in one run, without a task, and fine-tuned."""

import json
from pathlib import Path

import pytest

from examples import text_tasks
from pretrain.__main__ import main
from pretrain.run_dir.records import read_events, read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
SMALL = ["batch.sequences=8", "batch.micro_sequences=4", "track.mlflow=false", "schedule.warmup_steps=2"]
SMALL += ["model.hidden=32", "model.ffn=64", "model.layers=1", "model.encoder_layers=1"]


def test_text_and_tasks_then_the_task_that_was_left_out(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = Path("configs").resolve()
    monkeypatch.chdir(tmp_path)
    Path("datasets").mkdir()
    Path("datasets/text").symlink_to(dataset)
    assert text_tasks.main(Path("datasets/tasks")) == 0
    for name, sources in (("t5-multitask", 4), ("t5-leave-one-out", 3)):
        short = ["train.steps=6", "evaluate.every_steps=0", "checkpoint.every_steps=6"]
        assert main(["train", str(configs / f"debug/{name}.yaml"), *SMALL, *short]) == 0
        lines = read_metrics(f"runs/{name}")
        assert len(lines) == 6
        seen = {key for line in lines for key in line if key.startswith("loss_source_")}
        assert len(seen) == sources
        capsys.readouterr()
        assert main(["data", "ledger", f"runs/{name}", "--json"]) == 0
        ledger = json.loads(capsys.readouterr().out)
        weights = {one["name"]: one["share"] for one in ledger["realised"]}
        assert all(abs(one["samples"] - 48 * weights[one["name"]]) < 1 for one in ledger["realised"])
    task = ["data.path=datasets/tasks/sum", 'objective.prefix="sum: "', "track.mlflow=false"]
    short = ["train.epochs=null", "train.steps=4", "evaluate.every_steps=0", "checkpoint.every_steps=4"]
    tune = ["finetune", "runs/t5-leave-one-out", str(configs / "finetune/text-task.yaml")]
    assert main([*tune, *task, *short, "run.dir=runs/sum"]) == 0
    (figures,) = (event for event in read_events("runs/sum") if event["event"] == "figures")
    assert set(figures["figures"]) == {"exact_match"}
