"""`pretrain launch slurm`: what is refused before anything is queued, and what is queued."""

import json
import shlex
import stat
from pathlib import Path

import pytest

from pretrain.commands import launch_slurm
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError, RunError
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
    assert f"job 101: debug-gpt, log {directory.absolute()}/logs/debug-gpt-101.out\n" in printed
    assert "pretrain launch status" in printed


def test_machines_are_tested_unless_the_config_says_otherwise(given: list[str]) -> None:
    kept = Path("runs/big/launch/config.yaml")
    launch(*given)
    assert load(RunConfig, kept).health.preflight == "warn"
    launch(*given, "health.preflight=off")
    assert load(RunConfig, kept).health.preflight == "off"


def test_a_dry_run_leaves_nothing_behind(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(*given, "--dry-run") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# not checked: the memory of hosts, which ranks on CPUs check at their start, and exch")
    assert "#SBATCH --nodes=2" in printed
    log = Path("runs/big/launch/logs/debug-gpt-NUMBER.out").absolute()
    assert f"# log, with the job id that Slurm assigns as NUMBER: {log}\n" in printed
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
        (["--before", "'"], "is not a command"),
        (["--before", ""], "name a pretrain command, such as"),
        (["--tasks", "x"], "name a CONFIG to train, or"),
        (["data.path=nowhere"], "nowhere"),
        (["--gpus-per-node", "many"], "--gpus-per-node"),
        (["--time", "garbage"], "'time' = garbage: it should be minutes, hours:minutes:seconds or days-hours"),
        (["--time", "1-99:99:99"], "'time'"),
        (["--time", "10\n#SBATCH --uid=0"], "'time'"),
        (["--memory", "lots"], "'memory' = lots: it should be a size"),
        (["--partition", "a b"], "'partition' = a b: it should be a name as Slurm has it"),
        (["--partition", ""], "'partition'"),
        (["--account", "us\ntouch evil"], "'account'"),
        (["--qos", "a'b"], "'qos'"),
        (["--constraint", "h100; touch evil"], "'constraint' = h100; touch evil: it should be features"),
        (["--container", "i\ntouch evil"], "'container': a line break cannot be in a batch script"),
        (["--setup", "nowhere/env.sh"], "--setup nowhere/env.sh: there is no such file"),
        (["--setup", "."], "there is no such file"),
        (["--sbatch", "garbage"], "'garbage' is no option"),
        (["--sbatch", "--x\ntouch evil"], "a line break cannot be in a batch script"),
        (["--srun", "; touch evil"], "'; touch evil' is no option"),
        (["--env", "A=b\ntouch evil"], "a line break cannot be in a batch script"),
        (["--cluster", "injects.yaml"], "'A=1; touch evil' is no name of a variable"),
        (["--dependency", "evil foo"], "'evil foo' is not as Slurm writes it"),
        (["--after", "evil foo"], "'evil foo' is not a pretrain command: unknown command 'evil'"),
        (["--before", "evla runs/big"], "did you mean eval"),
        (["--after", "generate runs/big 'a\ntouch evil'"], "a line break cannot be in a batch script"),
        (['run.name="a\\ntouch evil"'], "a line break cannot be in a batch script"),
        (["run.name=a/b"], "'a/b' cannot name a job and the file of its script"),
    ],
)
def test_mistakes_are_sentences_before_anything_is_queued(given: list[str], words: list[str], said: str) -> None:
    Path("tiny.yaml").write_text("gpu_memory_gib: 0.001")
    Path("injects.yaml").write_text("env: {'A=1; touch evil': x}")
    Path("wrong.yaml").write_text("partitoin: gpu")
    with pytest.raises(Exception, match=said) as raised:
        launch(*given, *words)
    assert type(raised.value).__name__ in ("ConfigError", "DataError")
    assert not Path("calls").exists()
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "told",
    [
        *(["--time", time] for time in ("0", "90", "10:30", "1:00:00", "2-12", "1-00:00:00", "7-1:30", "UNLIMITED")),
        *(["--memory", size] for size in ("0", "900G", "64000M", "900GB")),
        *(["--constraint", features] for features in ("h100&ib", "[rack1|rack2]", "a*2&(b|c)")),
        *(["--partition", name] for name in ("gpu", "gpu,long", "a-b_c.d")),
        *(["--dependency", jobs] for jobs in ("singleton", "afterok:17", "afterok:17_2:18,afterany:9", "after:3+10")),
        ["--sbatch", "-t 5"], ["--srun", "--mpi=pmix --label"], ["--env", "A_1=$HOME/x y"],
    ],
)  # fmt: skip
def test_what_slurm_takes_is_taken(given: list[str], told: list[str]) -> None:
    assert launch(*given, *told) == 0


def test_a_setup_file_is_sourced_by_its_whole_path(given: list[str]) -> None:
    """A shell looks for a name alone in PATH."""
    Path("env.sh").touch()
    launch(*given, "--setup", "env.sh")
    script = Path("runs/big/launch/debug-gpt.sbatch").read_text()
    assert f"source {Path('env.sh').absolute()} || exit 2" in script.splitlines()


def test_the_log_of_an_array_is_that_of_a_task(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("ladder").write_text(shlex.join(["train", *given[:3]]))
    assert launch("--tasks", "ladder", "--directory", "arrays/a", *given[3:]) == 0
    log = Path("arrays/a/logs/a-101-N.out").absolute()
    assert f"job 101: a, log {log}\n" in capsys.readouterr().out


GPUS = ("--gpus-per-node", "4", "precision=bf16")


def test_ranks_are_rehearsed_before_a_run_on_gpus_is_queued(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks make their steps. Where one does not, or does not fit, nothing is queued."""
    Path("site.yaml").write_text("gpu_memory_gib: 79")
    assert launch(*given, *GPUS, "--cluster", "site.yaml") == 0
    printed = capsys.readouterr().out
    for rank in (0, 6, 7):
        assert f"\nrehearsed rank {rank}: makes its step, needs " in f"\n{printed}"
    assert " GiB of 79\n" in printed
    assert "\nexchanges of ranks that meet agree: " in printed
    assert Path("calls").exists()


@pytest.mark.slow
def test_a_run_whose_ranks_do_not_fit_is_not_queued(given: list[str]) -> None:
    """The planner's certain bound accepts it: the constant for libraries does not."""
    Path("site.yaml").write_text("gpu_memory_gib: 1.2")
    with pytest.raises(RunError, match=r"nothing was queued: rank 0 does not fit: it needs .* \(--no-rehearse queues"):
        launch(*given, *GPUS, "--cluster", "site.yaml", "--dry-run")
    assert not Path("calls").exists()
    assert not Path("runs").exists()


def test_a_rehearsal_is_skipped_on_request_and_for_cpus(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("site.yaml").write_text("gpu_memory_gib: 1.2")
    assert launch(*given, *GPUS, "--cluster", "site.yaml", "--no-rehearse") == 0
    told = "not rehearsed: --no-rehearse, so exchanges are not checked, and memory only as planned\n"
    assert capsys.readouterr().out.startswith(told)
    unplanned = ["debug/rnn", *given[1:], "run.dir=runs/unplanned", "batch.micro_sequences=8"]
    assert launch(*unplanned, *GPUS, "--cluster", "site.yaml", "--no-rehearse") == 0
    assert ", and memory only by a lower bound, as its models are not planned\n" in capsys.readouterr().out
    assert launch(*given) == 0
    assert capsys.readouterr().out.startswith("not checked: the memory of hosts")


LARGE = ("model.layers=80", "model.hidden=8192", "model.heads=64", "model.ffn=32768")


@pytest.mark.parametrize(
    "told",
    [
        ["--hardware", "h100"],
        ["--cluster", "site.yaml"],
        ["--constraint", "H100_80GB&ib"],
        ["--constraint", "h100|h200"],
    ],
)
def test_the_memory_of_gpus_is_that_of_the_hardware(given: list[str], told: list[str]) -> None:
    """It comes from `--hardware`, the site's file, or the smallest nodes that the constraint admits."""
    Path("site.yaml").write_text("hardware: h100")
    with pytest.raises(ConfigError, match=r"does not fit in memory: .* has 79\.1; "):
        launch(*given, *GPUS, *LARGE, "--no-rehearse", *told)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ([], "how much memory a GPU has is not known, .*: say --hardware NAME \\(a100-40, "),
        (["--dry-run", "--no-rehearse"], "how much memory a GPU has is not known"),
        (["--constraint", "ib"], "how much memory a GPU has is not known"),
        (["--constraint", "h100|fast"], "how much memory a GPU has is not known"),
        (["--constraint", "!h100"], "how much memory a GPU has is not known"),
        (["--constraint", "a100"], "how much memory a GPU has is not known"),
        (["--constraint", "v100"], "how much memory a GPU has is not known"),
        (["--hardware", "h1000"], "no hardware is called 'h1000'"),
        (["--hardware", "h100", "--constraint", "a100_40gb"], "admits nodes with GPUs of 39.4 GiB \\(a100-40\\)"),
        (["--hardware", "h100", "--gpus-per-node", "0"], "names GPUs, and nodes have none"),
        (["--hardware", "h100", "--gpus-per-node", "2"], "nodes have 2 GPUs, and each rank needs its own"),
    ],
)
def test_memory_that_is_not_known_is_asked_for(given: list[str], told: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        launch(*given, *GPUS, *told)
    assert not Path("runs").exists()


def test_memory_of_a_site_is_not_that_of_other_hardware(given: list[str]) -> None:
    Path("site.yaml").write_text("gpu_memory_gib: 0.001")
    assert launch(*given, *GPUS, "--cluster", "site.yaml", "--hardware", "h100", "--no-rehearse") == 0


def test_a_dry_run_of_an_array_says_what_it_does_not_check(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("ladder").write_text(shlex.join(["train", *given[:3]]))
    array = ["--tasks", "ladder", "--directory", "arrays/a", "--nodes", "2", "--gpus-per-node", "4", "--dry-run"]
    with pytest.raises(ConfigError, match="how much memory a GPU has is not known"):
        launch(*array)
    assert launch(*array, "--hardware", "h100") == 0
    assert capsys.readouterr().out.startswith("# not checked: exchanges, as runs of an array are not rehearsed; memory")


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
    ("command", "joins"),
    [
        ("finetune runs/big finetune/classification run.dir=runs/tone", True),
        ("finetune runs/big finetune/classification run.dir=runs/tone --nproc 2", False),
        ("finetune fetch sst2 data/sst2", False),
        ("features runs/big texts.jsonl --out features.parquet", True),
    ],
)
def test_ranks_of_a_node_run_one_command_together_where_they_can(given: list[str], command: str, joins: bool) -> None:
    assert launch(*given, "--after", command) == 0
    script = Path("runs/big/launch/debug-gpt-after.sbatch").read_text()
    assert ("srun --nodes=1 " in script) == joins


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 commands"),
        ("finetune nowhere finetune/classification", "nowhere is neither a checkpoint nor a run that has one"),
        ("finetune", "the following arguments are required: CHECKPOINT_OR_RUN, CONFIG"),
        ("finetune a b --seeds 1,2", "--seeds starts runs one after the other"),
        ("train 'a", "line 1: No closing quotation"),
        ("train nowhere", "nowhere: no such config file"),
        ("evil foo", "unknown command 'evil'"),
    ],
)
def test_commands_of_an_array_are_checked(given: list[str], text: str, said: str) -> None:
    Path("ladder").write_text(text)
    with pytest.raises(ConfigError, match=said):
        launch("--tasks", "ladder", "--directory", "a", "--nodes", "1")
    assert not Path("calls").exists()
