"""A launcher's variables that can't be meant are one sentence, before a rank waits for others."""

import pytest

from pretrain.__main__ import main
from pretrain.errors import ConfigError
from pretrain.process.local import check_room
from pretrain.process.ranks import check_launcher, global_rank, world_size
from tests.helpers.command import LAUNCHER

GOOD = dict(zip(LAUNCHER, ("1", "2", "1", "2", "127.0.0.1", "29500"), strict=True))
SLURM = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LAUNCHER, *SLURM, "SLURM_NTASKS_PER_NODE"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


def test_no_launcher_and_a_good_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    check_launcher()
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)
    check_launcher()
    assert (global_rank(), world_size()) == (1, 2)


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
        ({"RANK": None}, "RANK is not set"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
        ({"LOCAL_RANK": "1e9"}, "LOCAL_RANK=1e9"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE=3"),
        ({"RANK": None, "WORLD_SIZE": None, "LOCAL_RANK": "x"}, "LOCAL_RANK=x"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
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


@pytest.mark.parametrize("changed", [{"SLURM_NTASKS": "two"}, {"SLURM_PROCID": ""}, {"SLURM_LOCALID": "-"}])
def test_nonsense_of_srun_is_named(changed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SLURM | {"MASTER_ADDR": "host", "MASTER_PORT": "1"} | changed).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=next(iter(changed))):
        check_launcher()


def test_commands_without_ranks_pass_over_a_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert main(["data", "inspect", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_more_local_ranks_than_a_machine_can_work_with_are_refused() -> None:
    check_room(32)
    with pytest.raises(ConfigError, match="100,000 local ranks are too many"):
        check_room(100_000)
