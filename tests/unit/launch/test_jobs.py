"""Jobs of a submission, before Slurm sees them."""

from dataclasses import replace
from pathlib import Path

import pytest

from launch.slurm.jobs import Submission, array_job, run_jobs, with_preflight
from launch.slurm.site import Site
from launch.tasks import ArrayTask
from pretrain.errors import ConfigError
from tests.helpers.tiny import tiny_config

SUBMISSION = Submission(
    site=Site(gpus_per_node=8, cpus_per_rank=4), nodes=2, restarts=3, command_line="pretrain launch slurm ..."
)


def test_commands_beside_a_run_take_one_node_and_those_before_it_no_gpu(tmp_path: Path) -> None:
    config = tiny_config(run={"dir": str(tmp_path / "run")})
    before, after = ["data", "build", "x"], ["eval", "run", "--out", "y"]
    submission = replace(SUBMISSION, spares=1)
    jobs = run_jobs(submission, config, before=[before, before], after=[after], shrinks=True)
    name = config.run.name
    assert [job.name for job in jobs] == [f"{name}-before", f"{name}-before-2", name, f"{name}-after"]
    assert [job.nodes for job in jobs] == [1, 1, 2, 1]
    assert [job.site.gpus_per_node for job in jobs] == [0, 0, 8, 8]
    assert {job.site.ranks for job in jobs} == {8}
    assert [job.ranks_join for job in jobs] == [False, False, True, True]
    assert [job.shrinks for job in jobs] == [False, False, True, False]
    assert [job.spares for job in jobs] == [0, 0, 1, 0]
    assert [job.config for job in jobs] == [None, None, config, None]
    assert {job.directory for job in jobs} == {tmp_path / "run" / "launch"}


def test_a_command_that_starts_its_own_ranks_is_one_process(tmp_path: Path) -> None:
    config = tiny_config(run={"dir": str(tmp_path / "run")})
    (_, after) = run_jobs(SUBMISSION, config, before=[], after=[["eval", "run", "--nproc", "2"]], shrinks=False)
    assert not after.ranks_join


def test_nodes_are_tested_unless_the_config_says_otherwise(tmp_path: Path) -> None:
    config = tiny_config(run={"dir": str(tmp_path / "run")})
    assert with_preflight(config).health.preflight == "warn"
    off = config.model_copy(update={"health": config.health.model_copy(update={"preflight": "off"})})
    assert with_preflight(off).health.preflight == "off"


def test_an_array_is_of_one_kind_of_command(tmp_path: Path) -> None:
    evaluate, build = ArrayTask(("eval", "r"), None), ArrayTask(("data", "build", "x"), None)

    def job(*tasks: ArrayTask) -> bool:
        made = array_job(SUBMISSION, tasks, source=Path("file"), directory=tmp_path / "a", at_once=2)
        assert made.array is not None
        assert (made.name, made.array.tasks, made.tasks_file) == ("a", tasks, tmp_path / "a" / "tasks.jsonl")
        return made.ranks_join

    assert job(evaluate, evaluate)
    assert not job(build)
    with pytest.raises(ConfigError, match=r"file: .* cannot share an array: submit two"):
        job(evaluate, build)
