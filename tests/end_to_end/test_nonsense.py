"""Wrong configs and calls by the hundred, drawn from a seed: each ends in time, by the contract's statuses, with one
sentence and without a traceback; or it is good, and trains."""

import os
import shutil
from pathlib import Path

import pytest

from tests.end_to_end.conftest import write_config
from tests.helpers.nonsense import calls, problem

_WITHIN_S = 120


def found(seed: int, count: int, dataset: Path, run: Path, directory: Path) -> list[str]:
    """What is wrong with how any of the calls ended."""
    here, problems = Path.cwd(), []
    for number, call in enumerate(calls(seed, count, write_config(dataset, directory), run, dataset)):
        os.chdir(directory)  # where a path that is a word leads
        try:
            said = problem(call, directory, _WITHIN_S)
        finally:
            os.chdir(here)
        if said is not None:
            arguments = [argument[:80] for argument in call.arguments]
            problems.append(f"seed {seed}, call {number}: {arguments} {call.environment}: {said}")
        shutil.rmtree(directory / "run", ignore_errors=True)
    return problems


def test_nonsense_ends_with_one_sentence(dataset: Path, uninterrupted: Path, tmp_path: Path) -> None:
    assert found(1, 8, dataset, uninterrupted, tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 10))
def test_nonsense_by_the_hundred(seed: int, dataset: Path, uninterrupted: Path, tmp_path: Path) -> None:
    problems = found(seed, 50, dataset, uninterrupted, tmp_path)
    assert problems == [], "\n\n".join(problems)
