"""Processes of the command itself."""

import pytest

from data_pipeline.executors.processes import ProcessExecutor


@pytest.mark.parametrize(("workers", "tasks", "cores"), [(8, 1, 8), (8, 3, 2), (8, 8, 1), (2, 100, 1)])
def test_a_task_may_use_the_cores_that_others_leave(workers: int, tasks: int, cores: int) -> None:
    assert ProcessExecutor(workers).cores_per_task(tasks) == cores
