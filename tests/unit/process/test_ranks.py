"""A launcher's variables that can't be meant are one sentence, before a rank waits for others."""

import os

import pytest

from pretrain.__main__ import main
from pretrain.errors import ConfigError
from pretrain.process.local import check_local_ranks
from pretrain.process.ranks import MEETING, check_launcher, global_rank, world_size
from tests.helpers.command import LAUNCHER

GOOD = dict(zip(LAUNCHER, ("1", "2", "1", "2", "127.0.0.1", "29500"), strict=True))
SLURM = {
    **{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1"},
    **{"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "localhost,n[1-2]"},
}
OF_JOB = ("SLURM_NTASKS", "SLURM_TASKS_PER_NODE", "SLURM_JOB_NODELIST", "SLURM_RESTART_COUNT")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LAUNCHER, *SLURM, *OF_JOB, MEETING):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


def test_no_launcher_and_a_good_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    check_launcher()
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)
    check_launcher()
    assert (global_rank(), world_size()) == (1, 2)


def test_an_interface_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    check_launcher()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,nowhere0")
    with pytest.raises(ConfigError, match=r"GLOO_SOCKET_IFNAME=nowhere0 names no network interface of .*lo"):
        check_launcher()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"RANK": "5", "WORLD_SIZE": "1"}, "RANK=5 and WORLD_SIZE=1"),
        ({"RANK": "2"}, "the last is 1"),
        ({"WORLD_SIZE": "x"}, "WORLD_SIZE=x is not a number"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        ({"WORLD_SIZE": "²"}, "WORLD_SIZE=² is not a number"),
        ({"RANK": "-1"}, "RANK=-1"),
        ({"RANK": ""}, "RANK= is not"),
        (
            {"RANK": None},
            "WORLD_SIZE=2 is set in the environment, and RANK is not set, as by no launcher: unset WORLD_SIZE",
        ),
        (
            {"WORLD_SIZE": None},
            "RANK=1 is set in the environment, and WORLD_SIZE is not set, as by no launcher: unset RANK",
        ),
        ({"LOCAL_RANK": "1e9"}, "LOCAL_RANK=1e9"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE=3"),
        ({"RANK": None, "WORLD_SIZE": None, "LOCAL_RANK": "x"}, "LOCAL_RANK=x"),
        ({"MASTER_ADDR": None}, "WORLD_SIZE=2 is set, and MASTER_ADDR is not set"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"MASTER_PORT": None}, "MASTER_PORT is not set"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000 is no port"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http"),
    ],
)
def test_nonsense_is_named_with_status_2(
    changed: dict[str, str | None], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (GOOD | changed).items():
        if value is not None:
            monkeypatch.setenv(name, value)
    assert main(["train", "any.yaml"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def adopted(monkeypatch: pytest.MonkeyPatch, said: dict[str, str]) -> list[str]:
    """What srun's variables become in the launcher's."""
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    check_launcher()
    return [os.environ[name] for name in (*LAUNCHER, MEETING)]


def test_srun_says_which_rank_this_is_and_where_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    port = 15_000 + 7 + 2 * 4_001
    assert adopted(monkeypatch, SLURM) == ["1", "3", "1", "2", "localhost", str(port), "7.2.0"]


def test_what_the_user_says_of_the_place_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"MASTER_ADDR": "elsewhere", "MASTER_PORT": "29500"}
    assert adopted(monkeypatch, SLURM | place)[4:6] == ["elsewhere", "29500"]


def test_a_job_of_a_federation_has_ten_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    port = 15_000 + (4_026_531_847 + 2 * 4_001) % 17_000
    assert adopted(monkeypatch, SLURM | {"SLURM_JOB_ID": "4026531847"})[5:] == [str(port), "4026531847.2.0"]


def test_an_address_may_have_the_brackets_of_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (GOOD | {"MASTER_ADDR": "[::1]"}).items():
        monkeypatch.setenv(name, value)
    check_launcher()
    assert os.environ["MASTER_ADDR"] == "::1"


def test_a_step_s_own_numbers_come_before_its_job_s(monkeypatch: pytest.MonkeyPatch) -> None:
    of_job = {"SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "8", "SLURM_JOB_NODELIST": "n9"}
    assert adopted(monkeypatch, SLURM | of_job)[:5] == ["1", "3", "1", "2", "localhost"]


def test_without_a_step_s_numbers_its_job_s_count(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = {name: value for name, value in SLURM.items() if not name.startswith("SLURM_STEP_")} | {"SLURM_STEP_ID": "0"}
    of_job = {"SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2", "SLURM_JOB_NODELIST": "localhost"}
    restarted = {"SLURM_RESTART_COUNT": "4"}
    assert adopted(monkeypatch, rest | of_job | restarted)[1:] == ["2", "1", "2", "localhost", "15007", "7.0.4"]


def test_one_task_alone_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"}).items():
        monkeypatch.setenv(name, value)
    check_launcher()
    assert "RANK" not in os.environ


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"SLURM_STEP_NUM_TASKS": "two"}, "SLURM_STEP_NUM_TASKS=two is not a number"),
        ({"SLURM_PROCID": ""}, "SLURM_PROCID"),
        ({"SLURM_LOCALID": "-"}, "SLURM_LOCALID"),
        ({"SLURM_NODEID": "2"}, "'2,1' tasks on its nodes"),
        ({"SLURM_STEP_TASKS_PER_NODE": ""}, "SLURM_TASKS_PER_NODE is not set"),
        ({"SLURM_STEP_NODELIST": ""}, "SLURM_JOB_NODELIST is not set"),
        ({"SLURM_STEP_NODELIST": "n[0"}, "is no list of nodes"),
        ({"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID=x"),
        ({"SLURM_PROCID": "3"}, "RANK=3 and WORLD_SIZE=3"),
    ],
)
def test_nonsense_of_srun_is_named(changed: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=words):
        adopted(monkeypatch, SLURM | changed)


def test_commands_without_ranks_pass_over_a_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert main(["data", "inspect", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_more_local_ranks_than_a_machine_can_work_with_are_refused() -> None:
    check_local_ranks(32)
    with pytest.raises(ConfigError, match="100,000 local ranks are too many"):
        check_local_ranks(100_000)
