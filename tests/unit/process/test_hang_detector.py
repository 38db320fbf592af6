"""The rule by which ranks find that their run hangs: several ranks in one process, on a clock of the test's own."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from pretrain.process import emergency_exit
from pretrain.process.hang_detector import HangDetector
from pretrain.process.rank_location import RankLocation
from pretrain.process.watchdog import ActivityRecord

HANG_S, TIMEOUT_S = 40.0, 200.0
GRACE_S = HANG_S / 4
LOCATIONS = [RankLocation(f"node{rank // 2}", rank % 2, 100 + rank) for rank in range(4)]


class Left(Exception):
    """A rank has ended."""


class Ranks:
    """Four of them. `now_s` is the time at which each looks, as far as it is `awake`."""

    def __init__(self, run_dir: Path, monkeypatch: pytest.MonkeyPatch, owns_run: bool = True) -> None:
        self.said: list[str] = []
        self.left: list[int] = []
        monkeypatch.setattr(emergency_exit, "print_message", self.said.append)
        monkeypatch.setattr(emergency_exit, "exit_now", self._leave)
        monkeypatch.setattr("pretrain.process.hang_detector.time.sleep", lambda seconds: None)
        self.records = [ActivityRecord() for _ in LOCATIONS]
        self.awake = list(range(len(LOCATIONS)))
        self.hangs = [
            HangDetector(run_dir, LOCATIONS, rank, "abcd", hang_s=HANG_S, timeout_s=TIMEOUT_S, record=record)
            for rank, record in enumerate(self.records)
        ]
        for hang in self.hangs:
            hang.owns_run = owns_run
        self.now_s = 0.0

    def meet(self, step: int) -> None:
        for record in self.records:
            record.kicks, record.collectives, record.step, record.activity = step, step, step, f"step {step}"

    def pass_s(self, seconds: float, going_on: int | None = None, every_s: float = 2.0) -> None:
        """Meanwhile `going_on` makes progress."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += every_s
            if going_on is not None:
                self.records[going_on].kicks += 1
            for rank in [rank for rank in self.awake if rank not in self.left]:
                try:
                    self.hangs[rank].poll(self.now_s)
                except Left:
                    self.left.append(rank)

    @staticmethod
    def _leave() -> None:
        raise Left


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(tmp_path, monkeypatch)


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]


def test_ranks_that_meet_touch_no_file(ranks: Ranks, tmp_path: Path) -> None:
    for step in range(1, 20):
        ranks.meet(step)
        ranks.pass_s(HANG_S - 4)
    assert list(tmp_path.iterdir()) == []
    assert ranks.left == []


def test_a_stopped_rank_is_missing_and_all_others_end(ranks: Ranks, tmp_path: Path) -> None:
    ranks.meet(7)
    ranks.awake.remove(2)
    ranks.pass_s(HANG_S)
    assert ranks.left == []
    ranks.pass_s(GRACE_S + 4)
    assert sorted(ranks.left) == [0, 1, 3]
    (said,) = ranks.said
    assert "the run hangs at step 7: no rank has made progress for 40 s (health.hang_s=40)" in said
    assert "rank 2 (host node1, pid 102) gave no report" in said
    hung, failed = lines(tmp_path)
    assert hung["missing"] == [{"rank": 2, "host": "node1"}]
    assert failed["event"] == "failed"
    assert failed["step"] == 7
    ranks.awake.append(2)
    assert ranks.hangs[2].is_concluded(), "the rank that wakes sees that it is over"


def test_the_rank_whose_log_is_at_the_events_tells_by_it_alone(ranks: Ranks, tmp_path: Path) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    ranks.hangs[0].event = lambda name, **facts: told.append((name, facts))
    ranks.meet(7)
    ranks.awake.remove(2)
    ranks.pass_s(HANG_S + GRACE_S + 4)
    (hung, facts), (failed, _) = told
    assert (hung, failed, facts["step"]) == ("hung", "failed", 7)
    assert not (tmp_path / "events.jsonl").exists()


def test_with_the_first_rank_stopped_the_next_one_tells_and_the_lock_is_let_go(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    ranks.meet(7)
    ranks.awake = [1, 2, 3]
    ranks.pass_s(HANG_S + GRACE_S + 4)
    assert ranks.left == [1, 2, 3]
    assert len(ranks.said) == 1
    assert not (tmp_path / "lock").exists()


def test_the_lock_stays_where_the_first_rank_has_reported(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    ranks.meet(7)
    ranks.awake = [0, 1, 2]
    ranks.pass_s(HANG_S + GRACE_S + 4)
    assert (tmp_path / "lock").exists()


def test_a_run_directory_that_is_not_this_run_s_gets_no_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, monkeypatch, owns_run=False)
    (tmp_path / "lock").touch()
    ranks.awake = [1, 2, 3]
    ranks.pass_s(TIMEOUT_S)
    assert ranks.left == [1, 2, 3]
    assert (tmp_path / "lock").exists()
    assert not (tmp_path / "events.jsonl").exists()


def test_ranks_that_wait_for_one_that_goes_on_go_on_too(ranks: Ranks, tmp_path: Path) -> None:
    ranks.meet(7)
    ranks.pass_s(20 * HANG_S, going_on=3)
    assert ranks.left == []
    assert ranks.said == []
    assert list(tmp_path.glob("hangs/*/busy-00003.json"))
    ranks.meet(8)
    ranks.pass_s(2.0)
    assert list((tmp_path / "hangs").iterdir()) == [], "they have taken back what they said"


def test_at_the_end_they_take_back_what_they_said_too(ranks: Ranks, tmp_path: Path) -> None:
    ranks.meet(7)
    ranks.pass_s(2 * HANG_S, going_on=3)
    for hang in ranks.hangs:
        hang.close()
    assert list((tmp_path / "hangs").iterdir()) == []


def test_one_that_went_on_and_stops_is_found_then(ranks: Ranks) -> None:
    ranks.meet(7)
    ranks.pass_s(3 * HANG_S, going_on=3)
    ranks.awake.remove(3)
    ranks.pass_s(2 * GRACE_S - 4)
    assert ranks.left == []
    ranks.pass_s(8)
    assert sorted(ranks.left) == [0, 1, 2]
    assert "rank 3 (host node1, pid 103) gave no report" in ranks.said[0]


def test_a_rank_at_work_on_files_is_waited_for_two_hours(ranks: Ranks) -> None:
    ranks.meet(7)
    main = threading.main_thread().ident
    assert main is not None
    ranks.records[1].io_threads.add(main)
    ranks.pass_s(7100, every_s=5.0)
    assert ranks.left == []
    ranks.pass_s(200, every_s=5.0)
    assert sorted(ranks.left) == [0, 1, 2, 3]


def test_a_thread_that_is_at_work_on_files_excuses_only_who_waits_for_it(ranks: Ranks) -> None:
    ranks.meet(7)
    ranks.records[1].io_threads.add(12345)  # its saver, while it is in a step
    ranks.pass_s(HANG_S + GRACE_S + 4)
    assert sorted(ranks.left) == [0, 1, 2, 3]


def test_a_main_thread_that_waits_for_a_thread_at_files_is_excused(ranks: Ranks) -> None:
    ranks.meet(7)
    ranks.records[1].io_threads.add(12345)
    ranks.records[1].awaited_thread = 12345
    ranks.pass_s(20 * HANG_S)
    assert ranks.left == []


def test_the_first_step_may_take_longer(ranks: Ranks) -> None:
    first_s = (HANG_S + TIMEOUT_S) / 2
    ranks.pass_s(first_s - 2)
    assert ranks.said == []
    ranks.pass_s(GRACE_S + 6)
    assert sorted(ranks.left) == [0, 1, 2, 3]
    assert first_s + GRACE_S < TIMEOUT_S, "before collectives end by themselves"


def test_a_limit_above_half_of_the_time_out_counts_as_that_half(tmp_path: Path) -> None:
    hang = HangDetector(tmp_path, LOCATIONS, 0, "abcd", hang_s=300.0, timeout_s=100.0)
    assert hang.hang_s == 50


def test_ranks_a_step_apart_find_each_other(ranks: Ranks, tmp_path: Path) -> None:
    """An exchange may be over for one rank and not for the next."""
    ranks.meet(7)
    ranks.records[0].step = 8
    ranks.awake = [0, 1, 2]
    ranks.pass_s(HANG_S + GRACE_S + 4)
    assert len(ranks.said) == 1
    assert len(list(tmp_path.glob("hangs/step-*-abcd/rank-*.json"))) == 3


def test_reports_of_another_attempt_count_for_nothing(ranks: Ranks, tmp_path: Path) -> None:
    other = tmp_path / "hangs" / "step-00000007-ffff"
    other.mkdir(parents=True)
    (other / "rank-00002.json").write_text("{}")
    (other / "summary.txt").write_text("an older one")
    ranks.meet(7)
    assert not ranks.hangs[0].is_concluded()
    ranks.awake = [0, 1, 3]
    ranks.pass_s(HANG_S + GRACE_S + 4)
    assert "rank 2 (host node1, pid 102) gave no report" in ranks.said[0]
    assert (other / "summary.txt").read_text() == "an older one"


def test_a_rank_on_its_way_out_with_an_error_is_not_watched(ranks: Ranks, tmp_path: Path) -> None:
    ranks.meet(7)
    ranks.awake = [0]
    ranks.records[0].failing = True
    ranks.pass_s(10 * HANG_S)
    assert list(tmp_path.iterdir()) == []


def test_where_reports_cannot_be_written_the_watch_says_so_once_and_ends_nothing(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "hangs").write_text("a file")
    ranks.meet(7)
    ranks.awake = [0]
    ranks.pass_s(10 * HANG_S)
    assert ranks.left == []
    assert len(ranks.said) == 1
    assert "rank 0 cannot detect a hang" in ranks.said[0]


def test_a_rank_that_loses_its_peers_after_it_has_reported_still_gets_a_verdict(ranks: Ranks) -> None:
    ranks.meet(7)
    ranks.awake = [0]
    ranks.pass_s(HANG_S + 2)
    ranks.records[0].failing = True  # its main thread waits for the verdict
    ranks.pass_s(GRACE_S + 4)
    assert ranks.left == [0]
    assert ranks.hangs[0].wait_for_verdict()
