"""metrics.jsonl and events.jsonl, also after crashes."""

import json
import math
import os
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from pretrain.errors import RunError
from pretrain.run_dir.records import (
    EventLog,
    MetricsLog,
    StepMetrics,
    append_events,
    newest_metrics,
    read_events,
    read_metrics,
)

STEP = StepMetrics(
    step=1,
    loss=3.5,
    grad_norm=1.25,
    learning_rate=6e-4,
    tokens=4096,
    samples=2,
    data_hash="0123456789abcdef",
    step_seconds=0.5,
    tokens_per_second=8192.0,
    mfu=0.41,
    save_seconds=0.25,
)


def write_steps(run_dir: Path, first: int, last: int) -> None:
    log = MetricsLog(run_dir, first - 1)
    for step in range(first, last + 1):
        log.step(replace(STEP, step=step))
    log.close()


def steps(run_dir: Path) -> list[int]:
    return [line["step"] for line in read_metrics(run_dir)]


def test_a_line_has_exactly_the_keys_of_the_contract_in_order(tmp_path: Path) -> None:
    write_steps(tmp_path, 1, 1)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    keys = "step loss grad_norm learning_rate tokens samples data_hash step_seconds tokens_per_second mfu"
    later = "save_seconds loss_scale device_peak_bytes host_peak_bytes"
    assert list(json.loads(line)) == [*keys.split(), *later.split()]
    assert json.loads(line) | {"terms": {}, "figures": {}, "tokens_per_expert": {}} == vars(STEP)


def test_each_line_is_there_for_others_within_moments(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        log.step(replace(STEP, step=step))
        assert log.flush(5.0)
        assert steps(tmp_path)[-1] == step
    log.close()


def test_unknown_mfu_is_null(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.step(replace(STEP, mfu=None))
    log.close()
    assert '"mfu": null' in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null_and_valid_json(tmp_path: Path, value: float) -> None:
    log, events = MetricsLog(tmp_path), EventLog(tmp_path)
    log.step(replace(STEP, loss=value, grad_norm=value))
    events.event("heldout", loss=value, several=[value, {"deep": value}])
    log.close()
    for name in ("metrics.jsonl", "events.jsonl"):
        # Python's own reader takes NaN; other readers do not.
        json.loads((tmp_path / name).read_text(), parse_constant=pytest.fail)
    assert read_metrics(tmp_path)[0]["loss"] is None
    assert read_events(tmp_path)[0]["several"] == [None, {"deep": None}]


def test_resuming_drops_the_steps_after_the_checkpoint(tmp_path: Path) -> None:
    write_steps(tmp_path, 1, 7)
    write_steps(tmp_path, 5, 6)  # from the checkpoint of step 4
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_starting_over_drops_everything(tmp_path: Path) -> None:
    write_steps(tmp_path, 1, 7)
    write_steps(tmp_path, 1, 2)
    assert steps(tmp_path) == [1, 2]


def test_resuming_keeps_earlier_lines_byte_for_byte(tmp_path: Path) -> None:
    write_steps(tmp_path, 1, 7)
    before = (tmp_path / "metrics.jsonl").read_bytes().splitlines()
    write_steps(tmp_path, 5, 6)
    assert (tmp_path / "metrics.jsonl").read_bytes().splitlines()[:4] == before[:4]


@pytest.mark.parametrize("torn", [b'{"step": 3, "lo', b'{"step": 3}', b"\0\0\0\0\n", b"\n", b"3\n", b'{"loss": 1}\n'])
def test_a_torn_or_damaged_last_line_is_dropped(tmp_path: Path, torn: bytes) -> None:
    write_steps(tmp_path, 1, 2)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    write_steps(tmp_path, 3, 4)
    assert steps(tmp_path) == [1, 2, 3, 4]


def test_a_reader_beside_a_running_writer_sees_whole_lines_only(tmp_path: Path) -> None:
    write_steps(tmp_path, 1, 2)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3}')
    assert steps(tmp_path) == [1, 2]


def test_cutting_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_steps(tmp_path, 1, 7)
    before = (tmp_path / "metrics.jsonl").read_bytes()

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        MetricsLog(tmp_path, 4)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    monkeypatch.undo()
    write_steps(tmp_path, 5, 5)
    assert steps(tmp_path) == [1, 2, 3, 4, 5]


def test_reading_a_run_that_has_not_begun(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "none") == []
    assert read_events(tmp_path / "none") == []


def test_events_carry_utc_time_name_and_facts(tmp_path: Path) -> None:
    events = EventLog(tmp_path)
    events.event("saved", step=10, checkpoint="step-00000010")
    events.close()
    EventLog(tmp_path).event("resumed", step=10)
    first, second = read_events(tmp_path)
    time = datetime.fromisoformat(first.pop("time"))
    offset = time.utcoffset()
    assert offset is not None
    assert offset.total_seconds() == 0
    assert abs((datetime.now(time.tzinfo) - time).total_seconds()) < 60
    assert first == {"event": "saved", "step": 10, "checkpoint": "step-00000010"}
    assert second["event"] == "resumed"


def test_events_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    events = EventLog(tmp_path)

    def many(name: str) -> None:
        for _ in range(200):
            events.event(name, text="x" * 3000)

    threads = [threading.Thread(target=many, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events.close()
    names = [line["event"] for line in read_events(tmp_path)]
    assert sorted(names) == sorted("abcd" * 200)


def test_a_place_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        MetricsLog(tmp_path / "file" / "run")


def test_sync_has_the_disk_hold_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = MetricsLog(tmp_path)
    metrics.step(STEP)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    metrics.sync()
    assert synced[-1] == (tmp_path / "metrics.jsonl").stat().st_size
    assert synced[0] > 0


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.run_dir.json_lines._NEWEST_BYTES", 100)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"step": n}) + "\n" for n in range(1000)))
    assert [line["step"] for line in newest_metrics(tmp_path)] == list(range(993, 1000))


def test_zeros_and_torn_lines_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\0\0\0\n{"ste\n[3]\n{"step": 2}\n{"step"')
    assert [line["step"] for line in newest_metrics(tmp_path)] == [1, 2]
    assert [line["step"] for line in read_metrics(tmp_path) if "step" in line] == [1, 2]


@pytest.mark.parametrize("before", [b"", b'{"event": "started"}\n', b'{"event": "started"}\n{"eve'])
def test_events_of_another_thread_begin_on_a_line_of_their_own(tmp_path: Path, before: bytes) -> None:
    (tmp_path / "events.jsonl").write_bytes(before)
    append_events(tmp_path, ("hung", {"step": 3}), ("failed", {"reason": "the run hangs"}))
    assert [line["event"] for line in read_events(tmp_path)][-2:] == ["hung", "failed"]
    assert (tmp_path / "events.jsonl").read_bytes().startswith(before)
