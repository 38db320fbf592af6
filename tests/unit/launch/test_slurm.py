"""What is asked of Slurm and made of its answers, with programs of its names that say what Slurm 22.05 says."""

import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.slurm import client
from launch.slurm.allocation import Allocation
from pretrain.config.load import dump
from pretrain.errors import ConfigError, RunError
from tests.helpers.tiny import tiny_config

JOB = "JobId=17 JobName=big UserId=root(0) JobState=RUNNING Reason=None Restarts=2 NodeList=n[0-1] NumNodes=2"
Slurm = Callable[..., Path]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """slurm(scontrol="echo a") puts a program of that name first; what each is called with is in `calls`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    calls = tmp_path / "calls"

    def make(**scripts: str) -> Path:
        for name, text in scripts.items():
            path = programs / name
            path.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n{text}\n')
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return calls

    return make


def test_submits_and_returns_the_number(slurm: Slurm) -> None:
    calls = slurm(sbatch="echo '17;mini'")
    assert client.submit("/a/job.sbatch", "afterok:3") == "17"
    assert calls.read_text() == "sbatch --parsable --dependency=afterok:3 --kill-on-invalid-dep=yes /a/job.sbatch\n"


def test_a_refusal_is_said_in_slurms_words(slurm: Slurm) -> None:
    slurm(sbatch="echo 'sbatch: error: Batch job submission failed: Invalid partition name specified' >&2; exit 1")
    with pytest.raises(ConfigError, match=r"rejected /a: Batch job submission failed: Invalid partition name"):
        client.submit("/a")


def test_no_slurm_is_said(slurm: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(ConfigError, match="sbatch is not installed here: submit from a login node"):
        client.submit("/a")


def test_a_job_that_is_forgotten_has_no_facts(slurm: Slurm) -> None:
    slurm(scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert client.job_facts("17") == {}


def test_nodes_that_are_down_are_not_used(slurm: Slurm) -> None:
    slurm(sinfo="printf 'n0 allocated\\nn1 down*\\nn2 mixed\\nn3 allocated*\\nn4 drained\\n'")
    assert client.usable(["n0", "n1", "n2", "n3", "n4", "n5"]) == ["n0", "n2"]


def test_steps_are_those_of_the_command(slurm: Slurm) -> None:
    slurm(squeue="printf '17.0\\n17.batch\\n17.extern\\n'")
    assert client.steps("17") == ["17.0"]


def test_a_task_of_an_array_is_not_its_neighbours(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one has the array's own number, 17."""
    calls = slurm(squeue="printf '17_0.0\\n17_10.0\\n17_1.0\\n17_1.batch\\n'", scancel="true")
    task = client.this_job({"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "1"})
    monkeypatch.setattr("launch.slurm.allocation._END_S", 0.1)
    Allocation(task, "n0", "/a/job.sbatch", None, None).clear()
    asked = {line for line in calls.read_text().splitlines() if line.startswith("scancel")}
    assert asked == {"scancel --quiet --signal=KILL 17_1.0"}
    assert client.this_job({"SLURM_JOB_ID": "17"}) == "17"


def allocation(tmp_path: Path, shrinks: bool) -> Allocation:
    config = tmp_path / "config.yaml"
    config.write_text(dump(tiny_config(parallel={"tensor": 2}, batch={"sequences": 8, "micro_sequences": 1})))
    return Allocation("17", "n[0-3]", "/a/job.sbatch", 2 if shrinks else None, str(config) if shrinks else None)


STEP = ("srun", "--nodes=4", "--ntasks-per-node=2", "python")


def names_and(up: str) -> dict[str, str]:
    return {"sinfo": f"printf '{up}'"}


def test_a_run_goes_on_without_a_lost_node_on_a_legal_layout(slurm: Slurm, tmp_path: Path) -> None:
    slurm(**names_and("n0 mixed\\nn1 down*\\nn2 mixed\\nn3 mixed\\n"))
    found = allocation(tmp_path, shrinks=True).command(STEP)  # 6 ranks: 3 data ranks don't share 8 sequences
    assert found == [
        "srun", "--nodes=2", "--ntasks=4", "--nodelist=n0,n2", "--overlap", "--ntasks-per-node=2", "python",
    ]  # fmt: skip


def spared(tmp_path: Path, shrinks: bool = False) -> Allocation:
    """A run on three of four nodes."""
    config = tmp_path / "config.yaml"
    config.write_text(dump(tiny_config(batch={"sequences": 12, "micro_sequences": 1})))
    return Allocation("17", "n[0-3]", "/a/job.sbatch", 2, str(config) if shrinks else None, spares=1)


def test_a_spare_node_is_idle_until_another_is_lost(slurm: Slurm, tmp_path: Path) -> None:
    slurm(**names_and("n0 mixed\\nn1 mixed\\nn2 mixed\\nn3 mixed\\n"))
    place = spared(tmp_path)
    plain = ["srun", "--nodes=3", "--ntasks=6", "--nodelist=n0,n1,n2", "--ntasks-per-node=2", "python"]
    assert place.command(STEP) == plain
    slurm(**names_and("n0 mixed\\nn1 down*\\nn2 mixed\\nn3 mixed\\n"))
    assert place.command(STEP)[:5] == ["srun", "--nodes=3", "--ntasks=6", "--nodelist=n0,n2,n3", "--overlap"]


def test_a_bad_node_is_replaced_by_a_spare_one_while_there_is_one(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = slurm(**names_and("n0 mixed\\nn1 mixed\\nn2 mixed\\nn3 mixed\\n"), scontrol="true")
    monkeypatch.setattr("launch.slurm.allocation._END_S", 0.0)
    place = spared(tmp_path)
    assert place.exclude_nodes(["n0"]) == "the run resumes without n0"
    assert place.command(STEP)[:4] == ["srun", "--nodes=3", "--ntasks=6", "--nodelist=n1,n2,n3"]
    assert place.exclude_nodes(["n1"]) == "job 17 is requeued without n0, n1"
    assert calls.read_text().splitlines()[-2:] == ["scontrol requeue 17", "scontrol update JobId=17 ExcNodeList=n0,n1"]


def test_a_bad_node_that_a_spare_one_replaced_is_left_out_when_others_are_lost(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(**names_and("n0 mixed\\nn1 mixed\\nn2 mixed\\nn3 mixed\\n"))
    monkeypatch.setattr("launch.slurm.allocation._END_S", 0.0)
    place = spared(tmp_path)
    assert place.exclude_nodes(["n0"]) == "the run resumes without n0"
    calls = slurm(**names_and("n0 mixed\\nn1 down*\\nn2 mixed\\nn3 mixed\\n"), scontrol="true")
    with pytest.raises(RunError, match="2 of 3 nodes are left, and no spare one: job 17 is requeued without n0"):
        place.command(STEP)
    assert calls.read_text().splitlines()[-2:] == ["scontrol requeue 17", "scontrol update JobId=17 ExcNodeList=n0"]


def test_without_spare_nodes_left_the_job_is_queued_again_or_shrinks(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = slurm(**names_and("n0 mixed\\nn1 down*\\nn2 mixed\\nn3 down*\\n"), scontrol="true")
    monkeypatch.setattr("launch.slurm.allocation._END_S", 0.0)
    with pytest.raises(RunError, match="2 of 3 nodes are left, and no spare one: job 17 is requeued"):
        spared(tmp_path).command(STEP)
    assert "scontrol requeue 17" in calls.read_text().splitlines()
    assert spared(tmp_path, shrinks=True).command(STEP)[:4] == [
        "srun", "--nodes=2", "--ntasks=4", "--nodelist=n0,n2",
    ]  # fmt: skip


def test_what_never_ends_on_a_lost_node_is_not_waited_for(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.slurm.allocation._LOST_S", 0.1)
    monkeypatch.setattr("launch.slurm.allocation._END_S", 5.0)
    up = names_and("n0 mixed\\nn1 down*\\nn2 mixed\\nn3 mixed\\n")
    calls = slurm(**up, squeue="echo 17.0", scancel="true")
    allocation(tmp_path, shrinks=True).clear()
    asked = [line for line in calls.read_text().splitlines() if line.startswith("scancel")]
    assert asked == ["scancel --quiet --signal=KILL 17.0"]


def test_with_all_nodes_the_step_is_as_it_was(slurm: Slurm, tmp_path: Path) -> None:
    slurm(**names_and("n0 mixed\\nn1 mixed\\nn2 mixed\\nn3 mixed\\n"))
    assert allocation(tmp_path, shrinks=True).command(STEP) == list(STEP)


def test_with_no_node_it_says_so(slurm: Slurm, tmp_path: Path) -> None:
    slurm(**names_and("n0 down\\nn1 down*\\nn2 down\\nn3 down\\n"))
    with pytest.raises(ConfigError, match="cannot resume on 0 nodes of 2 ranks: no node is left"):
        allocation(tmp_path, shrinks=True).command(STEP)


def test_a_run_that_waits_for_another_node_asks_nothing(slurm: Slurm, tmp_path: Path) -> None:
    calls = slurm(**names_and(""))
    assert allocation(tmp_path, shrinks=False).command(STEP) == list(STEP)
    assert not calls.exists()


def test_ranks_are_asked_to_stop_and_not_srun(slurm: Slurm, tmp_path: Path) -> None:
    calls = slurm(scancel="true", squeue="printf '17.0\n17.batch\n'")
    place = allocation(tmp_path, shrinks=False)
    place.command(STEP)
    with subprocess.Popen(["sleep", "60"]) as process:
        place.ask_to_stop(process, signal.SIGTERM)
        assert calls.read_text().splitlines()[-1] == "scancel --quiet --signal=USR1 17.0"
        assert process.poll() is None
        place.command(["python", "-m", "pretrain", "data", "build"])  # no step: it is in the script itself
        place.ask_to_stop(process, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_a_job_with_a_bad_node_is_queued_again_for_others(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = slurm(scontrol=f"test $2 = show && echo '{JOB} ExcNodeList=n[5-6]'; true")
    monkeypatch.setattr("launch.slurm.allocation._END_S", 0.0)
    assert allocation(tmp_path, shrinks=False).exclude_nodes(["n1"]) == "job 17 is requeued without n1"
    _, requeued, excluded = calls.read_text().splitlines()
    assert requeued == "scontrol requeue 17"
    assert excluded == "scontrol update JobId=17 ExcNodeList=n5,n6,n1"


def test_where_all_nodes_are_bad_none_is_left_out(slurm: Slurm, tmp_path: Path) -> None:
    calls = slurm(scontrol="true")
    said = allocation(tmp_path, shrinks=False).exclude_nodes(["n0", "n1", "n2", "n3"])
    assert said == "all nodes failed the tests, so none is excluded"
    assert not calls.exists()


def test_a_run_that_may_shrink_goes_on_without_a_bad_node(slurm: Slurm, tmp_path: Path) -> None:
    slurm(**names_and("n0 mixed\nn1 mixed\nn2 mixed\nn3 mixed\n"))
    place = allocation(tmp_path, shrinks=True)
    assert place.exclude_nodes(["n1"]) == "the run resumes without n1"
    assert place.command(STEP)[:4] == ["srun", "--nodes=2", "--ntasks=4", "--nodelist=n0,n2"]


def test_ranks_that_a_killed_supervisor_left_behind_save_and_end(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.slurm.allocation._AGAIN_S", 0.01)
    gone = tmp_path / "gone"
    slurm(squeue=f"test -e {gone} || echo 17.0", scancel=f"touch {gone}")
    said: list[str] = []
    allocation(tmp_path, shrinks=False).adopt_orphaned_ranks(said.append)
    assert said == ["the previous supervisor is gone: the ranks that it started save and stop first"]
    assert gone.exists()
    said.clear()
    allocation(tmp_path, shrinks=False).adopt_orphaned_ranks(said.append)
    assert said == []


def test_a_controller_that_is_away_is_asked_again(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_BETWEEN_S", 0.01)
    away = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    back = tmp_path / "back"
    slurm(scontrol=f"test -e {back} && echo '{JOB}' && exit; touch {back}; {away}")
    assert client.job_facts("17")["JobState"] == "RUNNING"


def test_a_stopped_job_is_queued_again(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = slurm(scontrol=f"test $1 = requeue || echo '{JOB}'")
    monkeypatch.setattr("launch.slurm.allocation._END_S", 0.0)
    assert allocation(tmp_path, shrinks=False).requeue() == "job 17 is requeued"
    assert calls.read_text().splitlines()[-1] == "scontrol requeue 17"


def test_where_that_is_not_allowed_a_new_job_goes_on(slurm: Slurm, tmp_path: Path) -> None:
    refusal = "echo 'Requested operation is presently disabled for job 17' >&2; exit 1"
    calls = slurm(scontrol=f"if test $1 = requeue; then {refusal}; fi; echo '{JOB}'", sbatch="echo 18")
    said = allocation(tmp_path, shrinks=False).requeue()
    assert said == (
        "job 17 cannot be requeued (Requested operation is presently disabled for job 17): job 18 resumes after it"
    )
    assert (
        calls.read_text().splitlines()[-1]
        == "sbatch --parsable --dependency=afterany:17 --kill-on-invalid-dep=yes /a/job.sbatch"
    )


def test_of_an_array_only_the_task_goes_on(slurm: Slurm) -> None:
    calls = slurm(scontrol=f"test $1 = requeue && exit 1; echo '{JOB}'", sbatch="echo 18")
    assert Allocation("17_3", "n0", "/a/job.sbatch", None, None).requeue().endswith("job 18 resumes after it")
    asked = calls.read_text().splitlines()[-1]
    assert asked == "sbatch --parsable --dependency=afterany:17_3 --kill-on-invalid-dep=yes --array=3 /a/job.sbatch"


def test_so_is_one_that_saved_after_its_time_limit(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = JOB.replace("RUNNING", "COMPLETING").replace("Reason=None", "Reason=TimeLimit")
    calls = slurm(scontrol=f"test $1 = requeue || echo '{ended}'")
    monkeypatch.setattr("launch.slurm.allocation._END_S", 0.0)
    assert allocation(tmp_path, shrinks=False).requeue() == "job 17 is requeued"
    assert calls.read_text().splitlines()[-1] == "scontrol requeue 17"


def test_a_run_that_was_cancelled_and_saved_is_no_failure_to_slurm(slurm: Slurm, tmp_path: Path) -> None:
    calls = slurm(scancel="true")
    allocation(tmp_path, shrinks=False).end_cancelled()
    assert calls.read_text().splitlines() == ["scancel 17"]


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING"])
def test_a_cancelled_job_is_not(slurm: Slurm, tmp_path: Path, state: str) -> None:
    calls = slurm(scontrol=f"echo '{JOB.replace('RUNNING', state)}'")
    assert "is not requeued" in allocation(tmp_path, shrinks=False).requeue()
    assert "requeue" not in calls.read_text()
