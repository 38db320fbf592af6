"""Storage that fails, slows down, forgets or changes: no save counts before it is safe, and no valid one is lost."""

import errno
import hashlib
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from pretrain.checkpoint import directory as directories
from pretrain.checkpoint import files, store
from pretrain.checkpoint.collective import file_group
from pretrain.checkpoint.saver import Saved, Saver
from pretrain.engine.base import GlobalPart, Piece
from pretrain.errors import RunError
from tests.helpers import privileges
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, record, save, tiny_config, train, whole_state

SMALL = {"layers": 1, "hidden": 8, "heads": 2, "sequence_length": 8, "vocabulary": 16}


def _save_steps(directory: Path, steps: list[int], keep: int, model: dict[str, Any] | None = None) -> None:
    save(directory, build_engine(tiny_config(model=model or {})), *steps, keep=keep)


def _newest(directory: Path) -> tuple[str | None, list[str]]:
    warnings: list[str] = []
    checkpoint = store.newest_valid(directory, warnings.append)
    return checkpoint.name if checkpoint else None, warnings


def _newest_error(directory: Path) -> str:
    privileges.drop()
    with pytest.raises(RunError) as error:
        store.newest_valid(directory, lambda _: None)
    return str(error.value)


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def _files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


# Damage.


def _flips(data: bytes, where: list[tuple[int, int]]) -> list[bytes]:
    """`data` with one bit changed, for each (byte, bit) of `where`."""
    return [data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :] for byte, bit in where]


def test_every_flipped_bit_and_every_cut_is_found(tmp_path: Path) -> None:
    """Every byte of the small files, in every bit or in one of them; every length to which they could be cut; a sample
    of both for the tensors."""
    run_ranks(2, _save_steps, tmp_path, [1], 2, SMALL)
    checkpoint = tmp_path / "step-00000001"
    random = np.random.default_rng(0)
    names = _names(checkpoint)
    assert names == [
        "manifest.json",
        "record.json",
        "tensors-00000.safetensors",
        "tensors-00001.safetensors",
        "tokenizer.model",
    ]
    cases = 0
    for name in names:
        path, data = checkpoint / name, (checkpoint / name).read_bytes()
        size = len(data)
        if name == "tokenizer.model":
            bits = [(byte, bit) for byte in range(size) for bit in range(8)]
        elif name.startswith("tensors-"):
            bits = [(int(byte), int(random.integers(8))) for byte in random.integers(0, size, 400)]
        else:
            bits = [(byte, byte % 8) for byte in range(size)]
        cuts = range(size) if size < 100 else random.integers(0, size, 200)
        damaged = _flips(data, bits) + [data[:cut] for cut in cuts] + [data + b"\0"]
        for content in damaged:
            path.write_bytes(content)
            found = files.damage(checkpoint)
            assert found is not None
            assert name in found
        path.unlink()
        assert name in (files.damage(checkpoint) or "")
        path.write_bytes(data)
        cases += len(damaged)
    assert files.damage(checkpoint) is None
    assert cases > 2000


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damage_to_any_file_is_found_and_the_one_before_is_used(damage: str, tmp_path: Path) -> None:
    run_ranks(2, _save_steps, tmp_path / "whole", [1, 2], 2)
    for name in _names(tmp_path / "whole" / "step-00000002"):
        directory = tmp_path / f"{damage}-{name}"
        shutil.copytree(tmp_path / "whole", directory)
        victim = directory / "step-00000002" / name
        data = bytearray(victim.read_bytes())
        if damage == "flip":
            data[len(data) // 2] ^= 1
            victim.write_bytes(data)
        elif damage == "truncate":
            victim.write_bytes(data[:-1])
        else:
            victim.unlink()
        checkpoint, warnings = run_ranks(2, _newest, directory)[0]
        assert checkpoint == "step-00000001", name
        assert name in warnings[0]
        assert _names(directory) == ["step-00000001", "step-00000002.damaged"]


def test_nothing_valid_is_an_error_and_nothing_at_all_is_a_beginning(tmp_path: Path) -> None:
    assert run_ranks(1, _newest, tmp_path / "new")[0] == (None, [])
    run_ranks(1, _save_steps, tmp_path, [1], 2)
    (tmp_path / "step-00000001" / "record.json").unlink()
    assert "no checkpoint" in run_ranks(1, _newest_error, tmp_path)[0]
    assert "no checkpoint" in run_ranks(1, _newest_error, tmp_path)[0], "nor is one that was set aside a beginning"


# No access: says nothing about a checkpoint, so an older one must not take its place.


@pytest.mark.parametrize("what", ["step-00000002", "step-00000002/manifest.json", "step-00000002/record.json", "."])
def test_lost_permission_is_an_error_and_changes_nothing(what: str, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    run_ranks(2, _save_steps, directory, [1, 2], 2)
    before, mode = _files(directory), (directory / what).stat().st_mode
    (directory / what).chmod(0)
    messages = run_ranks(2, _newest_error, directory)
    (directory / what).chmod(mode)
    for message in messages:
        assert "Permission denied" in message
        assert str(directory / what) in message
        assert "restore access" in message
    assert _files(directory) == before


def _newest_with(number: int, directory: Path) -> Any:
    """`newest_valid` where reading the tensors of step 2 fails with an error number."""

    def digest(file: Any, kind: str) -> Any:
        if "step-00000002/tensors-00001" in file.name:
            raise OSError(number, os.strerror(number))
        return whole_digest(file, kind)

    whole_digest = hashlib.file_digest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashlib, "file_digest", digest)
        try:
            return _newest(directory)
        except RunError as error:
            return str(error)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ETIMEDOUT, errno.EPERM, errno.EMFILE])
def test_an_error_that_is_not_the_files_is_no_damage(number: int, tmp_path: Path) -> None:
    run_ranks(2, _save_steps, tmp_path, [1, 2], 2)
    for message in run_ranks(2, _newest_with, number, tmp_path):
        assert message.startswith("verifying ")
        assert f"{os.strerror(number)} ({tmp_path / 'step-00000002' / 'tensors-00001.safetensors'})" in message
    assert _names(tmp_path) == ["step-00000001", "step-00000002"]


def test_a_disk_that_cannot_read_a_file_has_damaged_it(tmp_path: Path) -> None:
    run_ranks(2, _save_steps, tmp_path, [1, 2], 2)
    for checkpoint, warnings in run_ranks(2, _newest_with, errno.EIO, tmp_path):
        assert checkpoint == "step-00000001"
        assert f"tensors-00001.safetensors cannot be read ({os.strerror(errno.EIO)})" in warnings[0]


def test_setting_aside_where_nothing_can_be_written_is_one_sentence(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    run_ranks(2, _save_steps, directory, [1, 2], 2)
    (directory / "step-00000002" / "record.json").write_bytes(b"")
    directory.chmod(0o555)
    messages = run_ranks(2, _newest_error, directory)
    directory.chmod(0o755)
    for message in messages:
        assert message.startswith("setting aside ")
        assert "Permission denied" in message
    assert _names(directory) == ["step-00000001", "step-00000002"]


# Saves that fail.


def _save_error(directory: Path) -> str:
    privileges.drop()
    engine = build_engine(tiny_config())
    with pytest.raises(RunError) as error:
        save(directory, engine, 2)
    return str(error.value)


def test_a_save_that_cannot_write_is_one_sentence_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file where the directory should be")
    directory = tmp_path / "read-only"
    run_ranks(1, _save_steps, directory, [1], 2)
    directory.chmod(0o555)
    for path in (tmp_path / "file", directory):
        for message in run_ranks(2, _save_error, path):
            assert message.startswith(f"saving {path / 'step-00000002'} failed: ")
    directory.chmod(0o755)
    assert run_ranks(1, _newest, directory)[0] == ("step-00000001", [])


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
    assert run_ranks(1, _newest, tmp_path)[0] == ("step-00000001", [])


def _train_while_the_last_rank_cannot_write(directory: Path) -> tuple[int, int, str]:
    """As the loop does: (the step at which training ends, saves begun by then, the error)."""
    engine = build_engine(tiny_config())

    def write(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if dist.get_rank() == dist.get_world_size() - 1:
        files.write = write  # type: ignore[assignment]
    step = begun = 0
    try:
        with Saver(directory, keep=2, in_flight=1) as saver:
            while step < 50:
                step += 1
                train(engine, range(step, step + 1))
                time.sleep(0.05 * dist.get_rank())  # ranks learn of it at different moments
                if engine.any(saver.failed):
                    saver.wait()
                if step % 2 == 0:
                    saver.save(engine.state(), record(step), b"tokenizer")
                    begun += 1
    except RunError as error:
        return step, begun, str(error)
    return step, begun, "nothing was raised"


def test_a_save_that_fails_on_one_rank_ends_training_at_the_same_step_on_all(tmp_path: Path) -> None:
    first, *others = run_ranks(4, _train_while_the_last_rank_cannot_write, tmp_path)
    assert "no space left" in first[2]
    assert all(other == first for other in others)


def _save_on_a_disk_that_forgets(directory: Path) -> str:
    """Step 2 is written and synced by all, but for one bit on the last rank."""
    engine = build_engine(tiny_config())
    save(directory, engine, 1)
    whole_sync = os.fsync

    def sync(descriptor: int) -> None:
        whole_sync(descriptor)
        os.pwrite(descriptor, b"\xff", os.fstat(descriptor).st_size - 1)

    if dist.get_rank() == dist.get_world_size() - 1:
        os.fsync = sync
    with pytest.raises(RunError) as error:
        save(directory, engine, 2, keep=1)
    return str(error.value)


def test_what_the_disk_does_not_give_back_is_no_checkpoint(tmp_path: Path) -> None:
    for message in run_ranks(2, _save_on_a_disk_that_forgets, tmp_path):
        assert "does not give back what was written" in message
        assert "tensors-00001.safetensors" in message
    assert run_ranks(1, _newest, tmp_path)[0] == ("step-00000001", [])


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


# Saves while training goes on.


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
            assert not directories.complete(directory), "four steps later nothing is written yet"
            second = whole_state(engine)
            threading.Timer(1.0, disk.fast.set).start()
            second_s = saver.save(engine.state(), record(6), b"tokenizer")
            assert directories.complete(directory), "the second save waits for the first"
            train(engine, range(6, 8))
    threads = [thread.name for thread in threading.enumerate()]
    return first, second, first_s, second_s, [vars(event) for event in events], threads


def _states(parallel: dict[str, Any], directory: Path, steps: list[int]) -> Any:
    engine = build_engine(tiny_config(parallel=parallel))
    found = []
    for step in steps:
        store.load(directory / directories.name(step), engine.state())
        found.append(whole_state(engine))
    return found


@pytest.mark.parametrize("parallel", [{}, {"pipeline": 2}], ids=str)
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
    return [path.name for path in directories.complete(directory)]


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
            return str(error), _names(directory)


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
    assert _names(tmp_path) == ["step-00000001", "step-00000002", "step-00000003"]
    first, second, third = run_ranks(2, _states, {}, tmp_path, [1, 2, 3])[0]
    assert any((first[name] != second[name]).any() for name in state)
    for name in state:
        np.testing.assert_array_equal(third[name], state[name], err_msg=name)


# Names, retention and what a kill leaves behind.


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    run_ranks(2, _save_steps, tmp_path, [99_999_998, 99_999_999, 100_000_000], 2)
    assert _names(tmp_path) == ["step-100000000", "step-99999999"]
    assert [path.name for path in directories.complete(tmp_path)] == ["step-99999999", "step-100000000"]


def test_a_failed_save_removes_nothing(tmp_path: Path) -> None:
    run_ranks(1, _save_steps, tmp_path, [1, 2], 2)
    assert len(run_ranks(2, _save_on_a_disk_that_forgets, tmp_path)) == 2  # keeps one
    assert run_ranks(1, _newest, tmp_path)[0] == ("step-00000002", [])


def _half(path: Path) -> None:
    """What a kill in the middle of writing or removing leaves."""
    shutil.copytree(path.parent / "step-00000002", path)
    (path / "manifest.json").unlink()


@pytest.mark.parametrize("name", ["step-00000003.tmp", "step-00000001.removed.tmp", "step-00000002.replaced.tmp"])
@pytest.mark.parametrize("then", ["start", "save"])
def test_what_a_kill_left_half_done_is_no_checkpoint_and_goes_away(name: str, then: str, tmp_path: Path) -> None:
    run_ranks(1, _save_steps, tmp_path, [2], 2)
    _half(tmp_path / name)
    if then == "start":
        assert run_ranks(1, _newest, tmp_path)[0] == ("step-00000002", [])
        assert _names(tmp_path) == ["step-00000002"]
    else:
        run_ranks(1, _save_steps, tmp_path, [3], 2)
        assert _names(tmp_path) == ["step-00000002", "step-00000003"]


def test_what_cannot_be_deleted_is_out_of_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a network file system keeps a file that someone still reads."""
    run_ranks(1, _save_steps, tmp_path, [2], 2)
    _half(tmp_path / "step-00000003.tmp")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        for _ in range(3):
            directories.tidy(tmp_path)
            assert len(_names(tmp_path)) == 2
            assert not (tmp_path / "step-00000003.tmp").exists()
        (tmp_path / "step-00000002.damaged").mkdir()
        (tmp_path / "step-00000002.damaged" / "kept").touch()
        directories.set_aside(tmp_path / "step-00000002")
    directories.tidy(tmp_path)
    assert _names(tmp_path) == ["step-00000002.damaged"]


def test_a_kill_while_one_replaces_another_loses_neither(tmp_path: Path) -> None:
    run_ranks(1, _save_steps, tmp_path, [2], 1)
    (tmp_path / "step-00000002").rename(tmp_path / "step-00000002.replaced.tmp")
    assert run_ranks(1, _newest, tmp_path)[0] == ("step-00000002", [])


def test_the_same_step_saved_again_replaces_the_first(tmp_path: Path) -> None:
    run_ranks(1, _save_steps, tmp_path, [1, 2], 2)
    (tmp_path / "step-00000002" / "record.json").unlink()
    run_ranks(1, _save_steps, tmp_path, [2], 2)
    assert run_ranks(1, _newest, tmp_path)[0] == ("step-00000002", [])
    assert _names(tmp_path) == ["step-00000001", "step-00000002"]


def _removed_in_steps(directory: Path) -> list[list[str]]:
    """What is there under a valid name at each file that retention deletes."""
    seen: list[list[str]] = []
    whole_unlink = os.unlink

    def unlink(*arguments: Any, **options: Any) -> None:
        seen.append([path.name for path in directories.complete(directory)])
        whole_unlink(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        _save_steps(directory, [1, 2], 1)
    return seen


def test_a_checkpoint_loses_its_name_before_its_files(tmp_path: Path) -> None:
    seen = run_ranks(1, _removed_in_steps, tmp_path)[0]
    assert len(seen) >= 4
    assert all(names == ["step-00000002"] for names in seen)


def _save_with_jumping_clock(directory: Path) -> tuple[str | None, list[str]]:
    engine = build_engine(tiny_config())
    now = iter(range(10**9, 0, -(10**6)))  # ever earlier
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: float(next(now)))
        patch.setattr(time, "time_ns", lambda: next(now) * 10**9)
        save(directory, engine, 1, 2)
        _backdate(directory, {"step-00000001": 2**33, "step-00000002": 0})
        save(directory, engine, 3)
        _backdate(directory, {"step-00000002": 2**33, "step-00000003": 0})
        return _newest(directory)


def _backdate(directory: Path, seconds: dict[str, int]) -> None:
    for name, at in seconds.items():
        for path in [*(directory / name).iterdir(), directory / name]:
            os.utime(path, (at, at))


def test_neither_a_jumping_clock_nor_absurd_times_of_files_change_anything(tmp_path: Path) -> None:
    assert run_ranks(1, _save_with_jumping_clock, tmp_path)[0] == ("step-00000003", [])
    assert _names(tmp_path) == ["step-00000002", "step-00000003"]


# Scoring only reads.


def _first_valid(directory: Path) -> tuple[str, list[str]]:
    warnings: list[str] = []
    return store.first_valid(directories.complete(directory)[::-1], warnings.append).name, warnings


def test_scoring_passes_over_a_damaged_checkpoint_and_changes_nothing(tmp_path: Path) -> None:
    run_ranks(2, _save_steps, tmp_path, [1, 2], 2)
    (tmp_path / "step-00000002" / "tensors-00001.safetensors").write_bytes(b"")
    before = _files(tmp_path)
    checkpoint, warnings = run_ranks(2, _first_valid, tmp_path)[0]
    assert checkpoint == "step-00000001"
    assert "step-00000002/tensors-00001.safetensors" in warnings[0]
    assert _files(tmp_path) == before


def _raised(call: Callable[[], object]) -> str:
    with pytest.raises(RunError) as error:
        call()
    return str(error.value)


def _first_valid_error(candidates: list[Path]) -> str:
    return _raised(lambda: store.first_valid(candidates, pytest.fail))


def test_a_damaged_checkpoint_named_directly_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    run_ranks(1, _save_steps, tmp_path, [1], 2)
    (tmp_path / "step-00000001" / "record.json").unlink()
    for message in run_ranks(2, _first_valid_error, [tmp_path / "step-00000001"]):
        assert "record.json cannot be read" in message
        assert "choose another" in message
