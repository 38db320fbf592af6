"""What the launcher of local ranks says of ranks that fail, with processes whose ends are written down."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from pretrain.process import local


class _Ending:
    """A process whose polls find these exit statuses, the last of them for ever."""

    def __init__(self, *polls: int | None) -> None:
        self._polls: Iterator[int | None] = itertools.chain(polls, itertools.repeat(polls[-1]))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = next(self._polls)
        return self.returncode


@pytest.mark.parametrize(
    ("survivor", "killed"),
    [([None, 1], [-9]), ([1], [-9]), ([1], [None, -9])],
    ids=["survivor ends later", "both within one poll", "the poll of the killed rank was too early"],
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_killed_rank_is_named_also_where_a_rank_that_lost_it_is_seen_first(
    survivor: list[int | None], killed: list[int | None], order: int, capsys: pytest.CaptureFixture[str]
) -> None:
    processes: Any = [_Ending(*survivor), _Ending(*killed)][::order]
    assert local._wait(processes) == 1
    rank = 1 if order == 1 else 0
    said = f"pretrain: rank {rank} was ended by SIGKILL, as Linux does where memory runs out\n"
    assert capsys.readouterr().err == said


def test_the_first_failure_s_exit_status_is_the_launcher_s(capsys: pytest.CaptureFixture[str]) -> None:
    processes: Any = [_Ending(None, None, None, 1), _Ending(None, 2), _Ending(0)]
    assert local._wait(processes) == 2
    assert capsys.readouterr().err == ""
