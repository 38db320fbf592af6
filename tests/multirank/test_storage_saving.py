"""Saves that fail, and saves while training continues."""

import resource
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from pretrain.checkpoint import files, store
from pretrain.checkpoint import saver as saver_file
from pretrain.checkpoint.saver import Saved, Saver
from pretrain.engine.base import GlobalPart, Piece
from pretrain.engine.collective import file_group
from pretrain.errors import RunError
from pretrain.run_dir.paths import checkpoint_name, complete_checkpoints
from tests.helpers import privileges
from tests.helpers.breadth import slow
from tests.helpers.ranks import run_ranks
from tests.helpers.storage import names_in, newest, save_on_a_disk_that_forgets, save_steps
from tests.helpers.tiny import build_engine, record, save, tiny_config, train, whole_state


def _save_error(directory: Path) -> str:
    privileges.drop()
    engine = build_engine(tiny_config())
    with pytest.raises(RunError) as error:
        save(directory, engine, 2)
    return str(error.value)


def test_a_save_that_cannot_write_is_one_sentence_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file where the directory should be")
    directory = tmp_path / "read-only"
    run_ranks(1, save_steps, directory, [1], 2)
    directory.chmod(0o555)
    for path in (tmp_path / "file", directory):
        for message in run_ranks(2, _save_error, path):
            assert message.startswith(f"saving {path / 'step-00000002'} failed: ")
    directory.chmod(0o755)
    assert run_ranks(1, newest, directory)[0] == ("step-00000001", [])


def _save_without_room(directory: Path) -> tuple[str, str]:
    """Saves step 1; then step 2 with files limited to 20 kB, and with no room on the disk: (what each says)."""
    engine = build_engine(tiny_config())
    save(directory, engine, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    with pytest.raises(RunError) as cut_off:
        save(directory, engine, 2)
    usage = shutil.disk_usage(directory)._replace(free=100_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(RunError) as full:
            save(directory, engine, 2)
    return str(cut_off.value), str(full.value)


def test_a_save_that_runs_out_of_room_leaves_the_one_before(tmp_path: Path) -> None:
    for cut_off, full in run_ranks(2, _save_without_room, tmp_path):
        assert cut_off.startswith("saving ")
        assert "tensors-0000" in cut_off
        assert "no space left on the disk of" in full
    assert run_ranks(1, newest, tmp_path)[0] == ("step-00000001", [])


def _one_disk_does_not_answer(directory: Path) -> tuple[int, list[str]]:
    """Steps made while the last rank's disk blocks, until the second save waits; and what was said."""
    engine = build_engine(tiny_config())
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saver_file, "_SLOW_S", 0.2)
        disk = _SlowDisk(patch) if dist.get_rank() == 1 else None
        with Saver(directory, keep=2, in_flight=1, warn=said.append) as saver:
            saver.save(engine.state(), record(1), b"tokenizer")
            train(engine, range(1, 5))
            if disk is not None:
                threading.Timer(1.0, disk.fast.set).start()
            saver.save(engine.state(), record(5), b"tokenizer")
    return len(complete_checkpoints(directory)), said


def test_training_that_waits_for_a_disk_says_so(tmp_path: Path) -> None:
    for number, said in run_ranks(2, _one_disk_does_not_answer, tmp_path):
        assert number == 2
        assert said
        assert "for the disk to take a checkpoint, and continues when it has (checkpoint.in_flight=1)" in said[0]


def test_what_the_disk_does_not_give_back_is_no_checkpoint(tmp_path: Path) -> None:
    for message in run_ranks(2, save_on_a_disk_that_forgets, tmp_path):
        assert "does not give back what was written" in message
        assert "tensors-00001.safetensors" in message
    assert run_ranks(1, newest, tmp_path)[0] == ("step-00000001", [])


def _reserve_error(directory: Path) -> str:
    """Where CUDA locks no page of host memory."""
    torch.cuda.cudart = lambda: SimpleNamespace(cudaHostRegister=lambda *_: 2)
    value: Any = SimpleNamespace(numel=lambda: 6, is_cuda=True, shape=(2, 3))
    with pytest.raises(RunError) as error, Saver(directory, keep=2, in_flight=1) as saver:
        saver.reserve({"model/w": GlobalPart((2, 3), (Piece((0, 0), value),), saves=True)})
    return str(error.value)


def test_memory_that_cannot_be_page_locked_ends_the_run_at_once(tmp_path: Path) -> None:
    for message in run_ranks(2, _reserve_error, tmp_path):
        assert "cannot page-lock the 24 bytes of host memory" in message


class _SlowDisk:
    """Files can be written only once `fast` is set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fast = threading.Event()
        whole_write = files.write

        def write(*arguments: Any) -> files.Digest:
            self.fast.wait()
            return whole_write(*arguments)

        patch.setattr(files, "write", write)


def _train_on_a_slow_disk(parallel: dict[str, Any], directory: Path) -> Any:
    """Two saves with one in flight: (state at the first, at the second, seconds held up by each, events)."""
    engine = build_engine(tiny_config(parallel=parallel))
    train(engine, range(2))
    events: list[Saved] = []
    with pytest.MonkeyPatch.context() as patch:
        disk = _SlowDisk(patch)
        with Saver(directory, keep=2, in_flight=1, saved=events.append) as saver:
            first, first_s = whole_state(engine), saver.save(engine.state(), record(2), b"tokenizer")
            train(engine, range(2, 6))
            assert not complete_checkpoints(directory), "four steps later nothing is written yet"
            second = whole_state(engine)
            threading.Timer(1.0, disk.fast.set).start()
            second_s = saver.save(engine.state(), record(6), b"tokenizer")
            assert complete_checkpoints(directory), "the second save waits for the first"
            train(engine, range(6, 8))
    threads = [thread.name for thread in threading.enumerate()]
    return first, second, first_s, second_s, [vars(event) for event in events], threads


def _states(parallel: dict[str, Any], directory: Path, steps: list[int]) -> Any:
    engine = build_engine(tiny_config(parallel=parallel))
    found = []
    for step in steps:
        store.load(directory / checkpoint_name(step), engine.state())
        found.append(whole_state(engine))
    return found


@pytest.mark.parametrize("parallel", [{}, slow({"pipeline": 2})], ids=str)
def test_training_goes_on_while_a_slow_disk_takes_the_state_of_the_saves_own_step(
    parallel: dict[str, Any], tmp_path: Path
) -> None:
    results = run_ranks(2, _train_on_a_slow_disk, parallel, tmp_path)
    first, second, first_s, second_s, events, threads = results[0]
    for expected, found in zip((first, second), run_ranks(2, _states, parallel, tmp_path, [2, 6])[0], strict=True):
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert second_s > 0.7, "the second save waits for the first, which the disk lets through after a second"
    assert [event["step"] for event in events] == [2, 6]
    assert [event["waited_seconds"] for event in events] == pytest.approx([first_s, second_s], abs=0.001)
    assert all(event["seconds"] >= event["waited_seconds"] for event in events)
    size_bytes = sum(path.stat().st_size for path in (tmp_path / "step-00000002").iterdir())
    assert events[0]["bytes"] + (tmp_path / "step-00000002" / "manifest.json").stat().st_size == size_bytes
    assert results[1][4] == [], "one rank reports"
    assert "saver" not in threads


def _one_slow_rank(directory: Path) -> list[str]:
    engine = build_engine(tiny_config())
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            disk = _SlowDisk(patch)
            threading.Timer(8.0, disk.fast.set).start()
        with Saver(directory, keep=2, in_flight=1, timeout_s=5.0) as saver:
            saver.save(engine.state(), record(1), b"tokenizer")
    return [path.name for path in complete_checkpoints(directory)]


@pytest.mark.slow
def test_ranks_wait_for_a_slow_disk_longer_than_for_each_other(tmp_path: Path) -> None:
    assert run_ranks(2, _one_slow_rank, tmp_path) == [["step-00000001"]] * 2


def _one_slow_reader(directory: Path) -> str | None:
    engine = build_engine(tiny_config())
    save(directory, engine, 1)
    group = file_group(5.0)
    whole_damage = files.damage

    def damage(*arguments: Any) -> str | None:
        time.sleep(8.0)
        return whole_damage(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(files, "damage", damage)
        checkpoint = store.newest_valid(directory, pytest.fail, group)
    assert checkpoint is not None
    assert store.load(checkpoint, engine.state(), group) > 0
    return checkpoint.name


@pytest.mark.slow
def test_ranks_wait_for_a_slow_reader_longer_than_for_each_other(tmp_path: Path) -> None:
    assert run_ranks(2, _one_slow_reader, tmp_path) == ["step-00000001"] * 2


def _end_by_an_error(directory: Path) -> tuple[str, list[str]]:
    """A loss that is not a number, while the disk is slow with an earlier save: (the error, what is there then)."""
    engine = build_engine(tiny_config())
    with pytest.MonkeyPatch.context() as patch:
        disk = _SlowDisk(patch)
        threading.Timer(0.5, disk.fast.set).start()
        try:
            with Saver(directory, keep=2, in_flight=1) as saver:
                saver.save(engine.state(), record(1), b"tokenizer")
                raise RunError("the loss is not finite")
        except RunError as error:
            return str(error), names_in(directory)


def test_a_run_that_ends_by_an_error_finishes_its_save(tmp_path: Path) -> None:
    expected = ("the loss is not finite", ["step-00000001"])
    assert run_ranks(2, _end_by_an_error, tmp_path) == [expected, expected]


def _save_three_in_flight(directory: Path) -> Any:
    engine = build_engine(tiny_config())
    events: list[Saved] = []
    with pytest.MonkeyPatch.context() as patch:
        disk = _SlowDisk(patch)
        with Saver(directory, keep=3, in_flight=3, saved=events.append) as saver:
            for step in (1, 2, 3):
                train(engine, range(step, step + 1))
                saver.save(engine.state(), record(step), b"tokenizer")
            state = whole_state(engine)
            disk.fast.set()
    return [event.step for event in events], state


def test_saves_in_flight_are_written_in_order_each_from_its_own_copy(tmp_path: Path) -> None:
    order, state = run_ranks(2, _save_three_in_flight, tmp_path)[0]
    assert order == [1, 2, 3]
    assert names_in(tmp_path) == ["step-00000001", "step-00000002", "step-00000003"]
    first, second, third = run_ranks(2, _states, {}, tmp_path, [1, 2, 3])[0]
    assert any((first[name] != second[name]).any() for name in state)
    for name in state:
        np.testing.assert_array_equal(third[name], state[name], err_msg=name)
