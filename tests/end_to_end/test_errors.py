"""A user's mistake is one sentence on stderr with what to do, exit status 2 (or 1), and no traceback."""

import json
import resource
import shutil
import time
from pathlib import Path

import pytest

from pretrain.__main__ import main
from pretrain.checkpoint import saver
from tests.helpers import command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["optimizer.learning_rte=1"], ["optimizer.learning_rte", "did you mean 'optimizer.learning_rate'"]),
        (["modle.layers=2"], ["modle", "did you mean 'model'"]),
        (["model.layers=two"], ["model.layers", "two"]),
        (["train.tokens=5"], ["exactly one of train.steps, train.tokens and train.epochs"]),
        (["parallel.tensor=3", "--nproc", "3"], ["parallel.tensor=3", "model.heads", "nearest", "2"]),
        (["parallel.pipeline=3", "--nproc", "3"], ["2 layers cannot be divided into 3 chunks", "use fewer"]),
        (["parallel.sequence=true"], ["parallel.sequence", "parallel.tensor"]),
        (["parallel.tensor=2", "--nproc", "3"], ["3 ranks", "multiple of 2"]),
        (["--nproc", "3"], ["global batch of 8", "nearest"]),
        (["data.path=nowhere"], ["nowhere"]),
        (["model.vocabulary=100"], ["model.vocabulary=100", "smaller", "500"]),
        (["batch.micro_sequences"], ["not an override"]),
        (["train.steps=3"], ["schedule.warmup_tokens=1024 is longer than the run", "768 tokens"]),
        (["--nproc", "1000"], ["1,000 local ranks are too many"]),
    ],
)
def test_config_mistake_is_one_sentence_before_anything_starts(
    arguments: list[str], words: list[str], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("pretrain: ")
    assert captured.err.count("\n") == 1
    for word in words:
        assert word in captured.err
    assert not (config.parent / "run").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["holds no text"]),
        (b"good\xff\xfe", ["UTF-8"]),
    ],
)
def test_bad_text_is_one_sentence_and_leaves_no_dataset(
    content: bytes, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    settings = [f"input={tmp_path / 'text.txt'}", f"output={tmp_path / 'dataset'}"]
    assert main(["data", "build", "configs/data/text.yaml", *settings]) == 2
    error = capsys.readouterr().err
    assert "text.txt" in error
    assert not (tmp_path / "dataset").exists()
    assert "Traceback" not in error
    for word in words:
        assert word in error


def test_unknown_command_and_task_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["trian"]) == 2
    assert "unknown command 'trian'" in capsys.readouterr().err
    assert main(["eval", str(tmp_path), "--tasks", "arithmetic_2d", "--out", str(tmp_path / "out")]) == 2
    assert "did you mean arithmetic_2d" in capsys.readouterr().err
    assert main(["eval", str(tmp_path), "--tasks", "heldout", "--out", str(tmp_path / "out")]) == 2
    assert "neither a checkpoint nor a run" in capsys.readouterr().err


def test_nobody_is_told_to_remove_what_is_no_dataset(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config.parent / "manifest.json").write_text("{")
    for path in (config, config.parent, config.parent / "nowhere"):
        assert main(["train", str(config), f"data.path={path}"]) == 2
        said = capsys.readouterr().err
        assert str(path) in said
        assert "or remove" not in said


def test_a_report_that_cannot_be_written_is_refused_before_scoring(
    config: Path, uninterrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(uninterrupted), "--tasks", "heldout", "--out", str(config)]) == 2
    assert "config.yaml is a file" in one_sentence(capsys.readouterr().err)


def test_a_model_that_no_machine_holds_is_refused_before_it_is_built(config: Path) -> None:
    done = command.run("train", config, "model.layers=1e9", "parallel.tensor=2", "--nproc", "2")
    assert done.returncode == 2
    said = one_sentence(done.stderr)
    assert "does not fit in memory" in said
    assert "model.layers=1000000000 is too many" in said
    assert not (config.parent / "run").exists()


def one_sentence(error: str) -> str:
    """The sentence of a failed command. Raises AssertionError on a traceback or more than one."""
    assert "Traceback" not in error, error
    (line,) = [line for line in error.splitlines() if line.startswith("pretrain: ")]
    return line


def test_a_damaged_shard_is_named_before_the_first_step(config: Path, dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "damaged"
    shutil.copytree(dataset, copy)
    shard = next(copy.glob("train-*.tar"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    done = command.run("train", config, f"data.path={copy}", "parallel.tensor=2", "--nproc", "2")
    assert done.returncode == 2
    assert shard.name in one_sentence(done.stderr)
    assert not (config.parent / "run" / "metrics.jsonl").exists()


def test_a_truncated_shard_is_named(config: Path, dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "truncated"
    shutil.copytree(dataset, copy)
    shard = next(copy.glob("train-*.tar"))
    shard.write_bytes(shard.read_bytes()[:-1000])
    done = command.run("train", config, f"data.path={copy}")
    assert done.returncode == 2
    assert shard.name in one_sentence(done.stderr)


def test_resuming_refuses_another_run_and_falls_back_from_a_damaged_checkpoint(config: Path, text: Path) -> None:
    assert command.run("train", config, "schedule.decay_tokens=10000").returncode == 0
    run = config.parent / "run"
    keep = ("schedule.decay_tokens=10000", "train.steps=26")
    resolved = (run / "config.yaml").read_bytes()
    changed = command.run("train", config, *keep, "optimizer.learning_rate=1e-3")
    assert changed.returncode == 2
    assert "optimizer.learning_rate=0.002" in one_sentence(changed.stderr)
    other = config.parent / "other"
    settings = [f"input={text}", f"output={other}", "tokenizer.vocabulary=500", "validation_fraction=0.2"]
    assert command.run("data", "build", "configs/data/text.yaml", *settings).returncode == 0
    moved = command.run("train", config, *keep, f"data.path={other}")
    assert moved.returncode == 2
    assert "order of samples" in one_sentence(moved.stderr)
    assert (run / "config.yaml").read_bytes() == resolved, "a refused start leaves the run as it was"
    victim = next((run / "checkpoints" / "step-00000024").glob("tensors-*.safetensors"))
    victim.write_bytes(victim.read_bytes()[:-1])
    done = command.run("train", config, *keep)
    assert done.returncode == 0, done.stderr
    assert victim.name in done.stdout + done.stderr
    kept = {path.name for path in (run / "checkpoints").iterdir()}
    assert kept == {"step-00000024", "step-00000026", "step-00000024.damaged"}
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "resumed"] == [16]


def _on_a_disk_for_small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
    saver._LAST_TRIES_S = (0.1,)


@pytest.mark.slow
def test_saves_that_fail_end_the_run_with_one_sentence_and_a_checkpoint_to_go_on_from(config: Path) -> None:
    arguments = ("train", config, "parallel.tensor=2", "schedule.decay_tokens=10000", "--nproc", "2")
    first = command.run(*arguments, "train.steps=8")
    assert first.returncode == 0, first.stderr
    limit = ("train.steps=1000", "checkpoint.unsaved_steps=12")
    limited = command.Command(*arguments, *limit, first=_on_a_disk_for_small_files)
    assert limited.wait(120) == 1, limited.printed
    assert "Traceback" not in limited.stderr
    first, *_, last = [line for line in limited.stderr.splitlines() if line.startswith("pretrain: ")]
    assert "step-00000016 failed: File too large" in first
    assert "tensors-0000" in first
    assert first.endswith("8 steps since step 8 are not saved; 12 of them end the run")
    assert "step-00000020 failed: File too large" in last
    assert last.endswith("after 2 tries the run ends, and 12 steps are lost")
    steps = len((config.parent / "run" / "metrics.jsonl").read_bytes().splitlines())
    assert steps == 20, "it ends at its limit"
    names = [path.name for path in (config.parent / "run" / "checkpoints").glob("*")]
    assert [name for name in names if not name.endswith(".tmp")] == ["step-00000008"]


def test_a_second_run_on_one_directory_is_refused(config: Path) -> None:
    first = command.Command("train", config, "train.steps=2000")
    try:
        deadline = time.monotonic() + 60
        while not (config.parent / "run" / "metrics.jsonl").exists():
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        second = command.run("train", config, "train.steps=2000")
        assert second.returncode == 2
        assert "another run is writing" in one_sentence(second.stderr)
    finally:
        first.kill()


@pytest.mark.parametrize("arguments", [["--nproc", "0"], ["--nproc=-2"], ["--npro", "4"]])
def test_launch_arguments_that_mean_nothing_are_refused(
    arguments: list[str], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), *arguments]) == 2
    assert "--npro" in one_sentence(capsys.readouterr().err)


def test_srun_that_names_no_node_is_refused(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2"}
    for name, value in (said | dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert main(["train", str(config)]) == 2
    assert "SLURM_JOB_NODELIST" in one_sentence(capsys.readouterr().err)
