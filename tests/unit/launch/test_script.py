"""The sbatch script: what it asks for, and that a shell reads it as it is meant."""

import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from launch.slurm.script import BatchJob, TaskArray, script
from launch.slurm.site import Site
from launch.tasks import ArrayTask

RUN = Path("/runs/it's big")


def job(**settings: object) -> BatchJob:
    plain = BatchJob(
        name="big",
        what="Trains it. Written by: pretrain launch slurm gpt3/1.3b",
        directory=RUN / "launch",
        work_dir=Path("/home/a b"),
        command=("train", str(RUN / "launch" / "config.yaml")),
        run_dir=RUN,
        python="/venv/bin/python",
        site=Site(gpus_per_node=8),
        nodes=4,
        ranks_join=True,
        restarts=3,
    )
    return replace(plain, **settings)  # type: ignore[arg-type]


def options(text: str) -> dict[str, str]:
    """Options of sbatch: name -> value."""
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH ")]
    return {name: "".join(shlex.split(value)) for name, _, value in (line.partition("=") for line in lines)}


def command(text: str) -> list[str]:
    """What the script becomes, as a shell reads it."""
    lines = text[text.index("exec ") :].removeprefix("exec ")
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {lines}"], capture_output=True, text=True, env={"SLURM_ARRAY_TASK_ID": "7"}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


def test_asks_for_machines_and_a_rank_for_each_gpu() -> None:
    found = options(script(job()))
    assert (found["nodes"], found["ntasks-per-node"], found["gpus-per-node"]) == ("4", "8", "8")
    assert found["signal"] == "B:USR1@300"
    assert found["output"] == f"{RUN}/launch/logs/%x-%j.out"
    assert {"requeue", "open-mode"} <= found.keys()
    assert not {"partition", "time", "exclusive", "no-kill", "array", "dependency", "cpus-per-task"} & found.keys()


def test_every_option_is_explained() -> None:
    site = Site(
        gpus_per_node=8, partition="a", account="b", qos="c", constraint="d&e", exclusive=True, cpus_per_rank=12,
        memory="0", time="1-00:00:00", setup="/s.sh", env={"A": "b c"}, sbatch=("--reservation=x",), save_margin_s=60,
    )  # fmt: skip
    text = script(job(site=site, shrinks=True))
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("#SBATCH "):
            assert re.fullmatch(r"# [A-Z].*\.", lines[number - 1]), line
    found = options(text)
    assert (found["partition"], found["account"], found["qos"], found["constraint"]) == ("a", "b", "c", "d&e")
    assert (found["mem"], found["time"], found["cpus-per-task"]) == ("0", "1-00:00:00", "12")
    assert found["reservation"] == "x"
    assert {"exclusive", "no-kill"} <= found.keys()
    assert found["signal"] == "B:USR1@60"
    assert "export A='b c'" in lines
    assert "source /s.sh || exit 2" in lines


def test_spare_nodes_are_of_the_job_and_not_of_the_step() -> None:
    text = script(job(spares=2))
    assert options(text)["nodes"] == "6"
    assert "no-kill" in options(text)
    words = command(text)
    at = words.index("--spare")
    assert words[at + 1 : at + 3] == ["2", "8"]
    assert "--nodes=4" in words[words.index("srun") :]


def test_the_supervisor_gets_the_step_and_the_step_the_command() -> None:
    words = command(script(job(site=Site(gpus_per_node=8, srun=("--mpi=none",)))))
    at, srun = words.index("--"), words.index("srun")
    assert words[:3] == ["/venv/bin/python", "-m", "launch.slurm.supervise"]
    given = dict(zip(words[3:at:2], words[4:at:2], strict=True))
    assert given == {
        "--directory": f"{RUN}/launch", "--run": str(RUN), "--restarts": "3", "--script": f"{RUN}/launch/big.sbatch",
    }  # fmt: skip
    assert {"--nodes=4", "--ntasks-per-node=8", "--kill-on-bad-exit=0", "--mpi=none"} <= set(words[srun:])
    assert words[-5:] == ["/venv/bin/python", "-m", "pretrain", "train", f"{RUN}/launch/config.yaml"]


def test_a_command_of_one_process_is_no_step_of_ranks() -> None:
    made = job(name="big-before", command=("data", "build", "x y"), run_dir=None, ranks_join=False, nodes=1)
    text = script(made)
    assert "srun" not in command(text)
    assert command(text)[-6:] == ["/venv/bin/python", "-m", "pretrain", "data", "build", "x y"]
    assert options(text)["ntasks-per-node"] == "1"
    assert f"{RUN}/launch/big-before" in command(text)  # its records are its own


def test_an_array_has_a_task_for_each_command() -> None:
    made = job(command=(), run_dir=None, array=TaskArray((ArrayTask(("eval", "r"), None),) * 12, 3))
    text = script(made)
    assert options(text)["array"] == "0-11%3"
    words = command(text)
    at = words.index("--task")
    assert words[at + 1 : at + 3] == [f"{RUN}/launch/tasks.jsonl", "7"]
    assert words[words.index("--directory") + 1] == f"{RUN}/launch/task-7"
    assert words[-3:] == ["/venv/bin/python", "-m", "pretrain"]


def test_ranks_in_a_container_have_its_python() -> None:
    words = command(script(job(site=Site(gpus_per_node=8, container="/i.sqsh", container_mounts="/a:/b"))))
    assert {"--container-image=/i.sqsh", "--container-mounts=/a:/b"} <= set(words)
    assert words[-5] == "python3"


def test_a_shell_finds_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(script(job(site=Site(env={"A": "$(rm -rf /)"}, setup="/a b.sh"))))
    assert subprocess.run(["bash", "-n", str(path)], capture_output=True).returncode == 0
    assert "export A='$(rm -rf /)'" in path.read_text()


@pytest.mark.parametrize("name", ["big", "a'b"])
def test_names_are_quoted(name: str) -> None:
    assert options(script(job(name=name)))["job-name"] == name


def test_options_of_srun_are_words_and_not_commands() -> None:
    words = command(script(job(site=Site(gpus_per_node=8, srun=("--mpi=none; touch evil", "-l")))))
    assert {"--mpi=none;", "touch", "evil", "-l"} <= set(words)


def test_a_percent_sign_in_a_path_is_none_of_slurms() -> None:
    found = options(script(job(directory=Path("/runs/50%j"))))
    assert found["output"] == "/runs/50%%j/logs/%x-%j.out"
