"""`pretrain launch slurm`: what is refused before anything is queued, and what is queued."""

import json
import shlex
import stat
from pathlib import Path

import pytest

from pretrain.commands import launch_slurm
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from tests.helpers.datasets import build_dataset, make_documents


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A config with data, and Slurm that takes every job: 101, 102, ..."""
    programs = tmp_path / "bin"
    programs.mkdir()
    sbatch = programs / "sbatch"
    sbatch.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\nexpr 100 + $(wc -l < {tmp_path}/calls)\n')
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    build_dataset(make_documents(0, 40), tmp_path, "data")
    return ["debug/gpt", "data.path=data", "run.dir=runs/big", "--nodes", "2", "--ranks-per-node", "4"]


def launch(*words: str) -> int:
    return launch_slurm.main(list(words))


def test_a_run_is_submitted_with_all_that_it_needs(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(*given) == 0
    directory = Path("runs/big/launch")
    assert Path("calls").read_text() == f"--parsable {directory.absolute()}/debug-gpt.sbatch\n"
    assert {path.name for path in directory.iterdir()} >= {"config.yaml", "code.json", "debug-gpt.sbatch", "logs"}
    assert "--ntasks-per-node=4" in (directory / "debug-gpt.sbatch").read_text()
    printed = capsys.readouterr().out
    assert "job 101: debug-gpt" in printed
    assert "pretrain launch status" in printed


def test_machines_are_tested_unless_the_config_says_otherwise(given: list[str]) -> None:
    kept = Path("runs/big/launch/config.yaml")
    launch(*given)
    assert load(RunConfig, kept).health.preflight == "warn"
    launch(*given, "health.preflight=off")
    assert load(RunConfig, kept).health.preflight == "off"


def test_a_dry_run_leaves_nothing_behind(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(*given, "--dry-run") == 0
    assert "#SBATCH --nodes=2" in capsys.readouterr().out
    assert not Path("runs").exists()
    assert not Path("calls").exists()


def test_a_chain_waits_for_what_comes_before(given: list[str]) -> None:
    before, after = "data build data/text input=a output=b", "eval runs/big --tasks heldout --out x"
    given += ["data.path=not/yet/built", "model.vocabulary=512"]
    assert launch(*given, "--before", before, "--after", after, "--dependency", "singleton") == 0
    calls = Path("calls").read_text().splitlines()
    assert [call.split()[1] for call in calls] == [
        "--dependency=singleton", "--dependency=afterok:101", "--dependency=afterok:102",
    ]  # fmt: skip
    assert [Path(call.split()[-1]).stem for call in calls] == [
        "debug-gpt-before", "debug-gpt", "debug-gpt-after",
    ]  # fmt: skip
    scripts = {path.stem: path.read_text() for path in Path("runs/big/launch").glob("*.sbatch")}
    assert "srun" not in scripts["debug-gpt-before"].partition("exec ")[2]
    assert "srun --nodes=1 " in scripts["debug-gpt-after"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "3"], "a global batch of 8 sequences does not divide over 3 data ranks"),
        (["--gpus-per-node", "4", "--cluster", "tiny.yaml"], "does not fit in memory"),
        (["--cluster", "nowhere"], "no such config file"),
        (["--cluster", "wrong.yaml"], "unknown key 'partitoin'"),
        (["--env", "A"], "--env A is not NAME=VALUE"),
        (["--before", "'"], "is no command"),
        (["--before", ""], "take a command of pretrain"),
        (["--tasks", "x"], "name a CONFIG to train, or"),
        (["data.path=nowhere"], "nowhere"),
        (["--gpus-per-node", "many"], "--gpus-per-node"),
    ],
)
def test_mistakes_are_sentences_before_anything_is_queued(given: list[str], words: list[str], said: str) -> None:
    Path("tiny.yaml").write_text("gpu_memory_gib: 0.001")
    Path("wrong.yaml").write_text("partitoin: gpu")
    with pytest.raises(Exception, match=said) as raised:
        launch(*given, *words)
    assert type(raised.value).__name__ in ("ConfigError", "DataError")
    assert not Path("calls").exists()
    assert not Path("runs").exists()


def test_slurms_refusal_is_passed_on(given: list[str]) -> None:
    Path("bin/sbatch").write_text("#!/bin/sh\necho 'sbatch: error: Invalid account' >&2; exit 1\n")
    with pytest.raises(ConfigError, match="Invalid account"):
        launch(*given)


def test_a_site_is_overruled_by_options(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("site.yaml").write_text("partition: slow\naccount: us\nenv: {A: '1', B: '2'}\nsbatch: [--x=1]")
    launch(*given, "--cluster", "site.yaml", "--partition", "fast", "--env", "B=3", "--sbatch=--y=2", "--dry-run")
    printed = capsys.readouterr().out
    for line in ("#SBATCH --partition=fast", "#SBATCH --account=us", "#SBATCH --x=1", "#SBATCH --y=2", "export A=1"):
        assert line in printed.splitlines()
    assert "export B=3" in printed.splitlines()


def test_an_array_has_the_commands_of_a_file(given: list[str]) -> None:
    config, *settings = given[:3]
    lines = [shlex.join(["pretrain", "train", config, *settings, f"run.seed={seed}"]) for seed in range(3)]
    Path("ladder").write_text("# seeds\n" + "\n".join(lines) + "\n")
    assert launch("--tasks", "ladder", "--directory", "arrays/a", "--at-once", "2", *given[3:]) == 0
    assert "--array=0-2%2" in Path("arrays/a/a.sbatch").read_text()
    tasks = [json.loads(line) for line in Path("arrays/a/tasks.jsonl").read_text().splitlines()]
    assert [task["command"][-1] for task in tasks] == ["run.seed=0", "run.seed=1", "run.seed=2"]
    assert {task["run_dir"] for task in tasks} == {str(Path("runs/big").absolute())}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 commands"),
        ("train 'a", "line 1: No closing quotation"),
        ("train nowhere", "nowhere: no such config file"),
        ("data build x\neval y", "don't mix"),
    ],
)
def test_commands_of_an_array_are_checked(given: list[str], text: str, said: str) -> None:
    Path("ladder").write_text(text)
    with pytest.raises(ConfigError, match=said):
        launch("--tasks", "ladder", "--directory", "a", "--nodes", "1")
    assert not Path("calls").exists()
