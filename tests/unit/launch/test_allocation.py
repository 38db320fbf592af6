"""Nodes that a step gets, in cases where each condition decides alone, with a Slurm and a clock of their own.

`test_slurm.py` has the commands that Slurm is asked with.
"""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.slurm import allocation as module
from launch.slurm.allocation import Allocation
from pretrain.config.load import dump
from pretrain.errors import ConfigError, RunError
from tests.helpers.tiny import tiny_config

STEP = ("srun", "--nodes=3", "--ntasks-per-node=2", "python")
UP = ["n0", "n1", "n2", "n3", "n4"]


class Slurm:
    """A controller: the nodes that are up, the fields of the job, what it refuses, and what it was asked to do."""

    def __init__(self) -> None:
        self.up, self.facts, self.refused = list(UP), {"JobState": "RUNNING"}, dict[str, str]()
        self.asked: list[str] = []
        self.now, self.steps_end = 0.0, 0.0

    def usable(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self.up]

    def job_facts(self, job: str) -> dict[str, str]:
        return self.facts

    def requeue(self, job: str) -> str | None:
        self.asked.append("requeue")
        return self.refused.get("requeue")

    def exclude(self, job: str, nodes: Sequence[str]) -> str | None:
        self.asked.append(f"exclude {','.join(nodes)}")
        return self.refused.get("exclude")

    def submit(self, script: str, dependency: str, task: str | None) -> str:
        self.asked.append(f"submit {dependency} {task}")
        return "18"

    def cancel(self, job: str) -> None:
        raise RunError("Slurm does not answer")

    def steps(self, job: str) -> list[str]:
        return ["17.0"] if self.now < self.steps_end else []

    def signal_steps(self, job: str, name: str) -> None:
        self.asked.append(name)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    found = Slurm()
    monkeypatch.setattr(module, "client", found)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=found.monotonic, sleep=found.sleep))
    return found


def place(tmp_path: Path, *, spares: int, shrinks: bool = False, nodes: str = "n[0-4]") -> Allocation:
    config = tmp_path / "config.yaml"
    if shrinks:
        config.write_text(dump(tiny_config(batch={"sequences": 12, "micro_sequences": 1})))
    return Allocation("17", nodes, "/a/job.sbatch", 2, str(config) if shrinks else None, spares=spares)


def nodes_of(command: list[str]) -> str | None:
    return next((word.partition("=")[2] for word in command if word.startswith("--nodelist=")), None)


def test_of_several_spare_nodes_none_is_one_that_was_excluded_before(slurm: Slurm, tmp_path: Path) -> None:
    spared = place(tmp_path, spares=2)
    assert nodes_of(spared.command(STEP)) == "n0,n1,n2"
    assert spared.exclude_nodes(["n0"]) == "the run resumes without n0"
    assert nodes_of(spared.command(STEP)) == "n1,n2,n3"
    assert spared.exclude_nodes(["n2"]) == "the run resumes without n2"
    assert nodes_of(spared.command(STEP)) == "n1,n3,n4"
    assert spared.exclude_nodes(["n3"]) == "job 17 is requeued without n0, n2, n3"
    assert slurm.asked == ["requeue", "exclude n0,n2,n3"]


def test_a_run_that_may_shrink_takes_its_spare_nodes_first_and_never_an_excluded_one(
    slurm: Slurm, tmp_path: Path
) -> None:
    shrinking = place(tmp_path, spares=1, shrinks=True)
    assert nodes_of(shrinking.command(STEP)) == "n0,n1,n2,n3"
    found = []
    for bad in ("n1", "n0", "n4"):
        assert shrinking.exclude_nodes([bad]) == f"the run resumes without {bad}"
        found.append(nodes_of(shrinking.command(STEP)))
    assert found == ["n0,n2,n3,n4", "n2,n3,n4", "n2,n3"]
    assert slurm.asked == []
    assert shrinking.exclude_nodes(["n2", "n3"]) == "job 17 is requeued without n1, n0, n4, n2, n3", "none is left"
    assert slurm.asked == ["requeue", "exclude n1,n0,n4,n2,n3"]


@pytest.mark.parametrize(
    ("ranks", "spares", "up", "first", "restricted"),
    [
        (2, 1, UP, "srun", "n0,n1,n2,n3"),
        (2, 1, UP[1:], "srun", "n1,n2,n3,n4"),
        (2, 1, UP[1:], "python", None),  # no step
        (None, 1, UP[1:], "srun", None),
        (2, 0, UP, "srun", None),
    ],
)
def test_a_step_of_a_run_alone_is_restricted_to_nodes(
    slurm: Slurm, *, ranks: int | None, spares: int, up: list[str], first: str, restricted: str | None
) -> None:
    slurm.up = up
    command = Allocation("17", "n[0-4]", "/a", ranks, None, spares=spares).command([first, *STEP[1:]])
    assert nodes_of(command) == restricted
    assert ("--overlap" in command) == (restricted is not None and up != UP)
    assert restricted is not None or command == [first, *STEP[1:]]


@pytest.mark.parametrize(("excluded", "asked"), [([], ["requeue"]), (["n4"], ["requeue", "exclude n4"])])
def test_without_nodes_enough_the_job_is_queued_again(
    slurm: Slurm, tmp_path: Path, excluded: list[str], asked: list[str]
) -> None:
    spared = place(tmp_path, spares=1)
    if excluded:
        spared.exclude_nodes(excluded)
    slurm.up = UP[2:]
    with pytest.raises(RunError, match=r"of 4 nodes are left, and no spare one: job 17 is requeued"):
        spared.command(STEP)
    assert slurm.asked == asked


@pytest.mark.parametrize(
    ("nodes", "bad", "said"),
    [
        ("n[0-1]", ["n0"], "job 17 is requeued without n0"),
        ("n[0-1]", ["n0", "n1"], "all nodes failed the tests, so none is excluded"),
        ("n[0-1]", ["n0", "n1", "n7"], "all nodes failed the tests, so none is excluded"),
        ("n0", ["n0"], "job 17 is requeued without n0"),  # another one may be well
    ],
)
@pytest.mark.parametrize("shrinks", [False, True])
def test_all_nodes_are_not_excluded(
    slurm: Slurm, tmp_path: Path, *, nodes: str, bad: list[str], said: str, shrinks: bool
) -> None:
    if shrinks and (nodes, bad) == ("n[0-1]", ["n0"]):
        said = "the run resumes without n0"
    assert place(tmp_path, spares=0, nodes=nodes, shrinks=shrinks).exclude_nodes(bad) == said


def test_a_run_without_spare_nodes_waits_for_others(slurm: Slurm, tmp_path: Path) -> None:
    """Also where as many are up as it uses, of which the bad one is none."""
    said = place(tmp_path, spares=0, nodes="n[0-1]").exclude_nodes(["n1-of-another-name"])
    assert said == "job 17 is requeued without n1-of-another-name"


@pytest.mark.parametrize(
    ("before", "refused", "asked", "said"),
    [
        ("(null)", {}, ["requeue", "exclude n1"], "job 17 is requeued without n1"),
        ("n[7-8]", {}, ["requeue", "exclude n7,n8,n1"], "job 17 is requeued without n1"),
        ("n1,n8", {}, ["requeue", "exclude n1,n8"], "job 17 is requeued without n1"),
        ("(null)", {"requeue": "disabled"}, ["requeue"], "n1 cannot be excluded (disabled)"),
        ("(null)", {"exclude": "no"}, ["requeue", "exclude n1"], "n1 cannot be excluded (no)"),
    ],
)
def test_nodes_excluded_by_the_user_stay_so(
    slurm: Slurm, tmp_path: Path, *, before: str, refused: dict[str, str], asked: list[str], said: str
) -> None:
    slurm.facts["ExcNodeList"], slurm.refused = before, refused
    assert place(tmp_path, spares=0).exclude_nodes(["n1"]) == said
    assert slurm.asked == asked
    assert slurm.now == (0.0 if refused else 60.0), "within which Slurm ends this process"


@pytest.mark.parametrize(
    ("state", "reason", "is_requeued"),
    [
        ("RUNNING", "None", True),
        ("RUNNING", "TimeLimit", True),
        ("CANCELLED+", "None", False),
        ("COMPLETING", "None", False),
        ("COMPLETING", "TimeLimit", True),
    ],
)
def test_a_cancelled_job_is_not_queued_again(slurm: Slurm, state: str, reason: str, is_requeued: bool) -> None:
    slurm.facts = {"JobState": state, "Reason": reason}
    said = Allocation("17", "n0", "/a", None, None).requeue()
    assert said == ("job 17 is requeued" if is_requeued else "job 17 was cancelled through Slurm: it is not requeued")
    assert slurm.asked == (["requeue"] if is_requeued else [])
    assert slurm.now == (60.0 if is_requeued else 0.0)


@pytest.mark.parametrize(("job", "task"), [("17", None), ("17_3", "3")])
def test_a_job_that_may_not_be_queued_again_is_submitted(slurm: Slurm, job: str, task: str | None) -> None:
    slurm.facts, slurm.refused = {}, {"requeue": "disabled"}
    said = Allocation(job, "n0", "/a", None, None).requeue()
    assert said == f"job {job} cannot be requeued (disabled): job 18 resumes after it"
    assert slurm.asked == ["requeue", f"submit afterany:{job} {task}"]


def test_a_cancelled_run_ends_also_where_slurm_does_not_answer(slurm: Slurm) -> None:
    Allocation("17", "n0", "/a", None, None).end_cancelled()


@pytest.mark.parametrize(
    ("ranks", "up", "steps_end", "seconds"),
    [(2, UP, 9.0, 9.0), (2, UP, 1e9, 60.0), (2, UP[1:], 1e9, 5.0), (2, UP[1:], 3.0, 3.0), (None, UP[1:], 1e9, 60.0)],
)
def test_processes_of_a_step_are_waited_for_unless_their_node_is_lost(
    slurm: Slurm, *, ranks: int | None, up: list[str], steps_end: float, seconds: float
) -> None:
    slurm.up, slurm.steps_end = up, steps_end
    Allocation("17", "n[0-4]", "/a", ranks, None).clear()
    assert slurm.asked == ["KILL"] * int(seconds)


@pytest.mark.parametrize(("steps_end", "saves", "kills"), [(0.0, 0, 0), (25.0, 3, 0), (1e9, 60, 60)])
def test_orphaned_ranks_are_asked_to_save_for_ten_minutes_and_then_killed(
    slurm: Slurm, steps_end: float, saves: int, kills: int
) -> None:
    slurm.steps_end, said = steps_end, list[str]()
    Allocation("17", "n[0-4]", "/a", None, None).adopt_orphaned_ranks(said.append)
    assert slurm.asked == ["USR1"] * saves + ["KILL"] * kills
    assert len(said) == (1 if saves else 0)


def test_with_no_legal_layout_it_says_so(slurm: Slurm, tmp_path: Path) -> None:
    slurm.up = []
    with pytest.raises(ConfigError, match="cannot resume on 0 nodes of 2 ranks: no node is left"):
        place(tmp_path, spares=0, shrinks=True).command(STEP)
