"""A checkpoint written on one layout is read by any other, and the run goes on as if it had not stopped."""

import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.checkpoint import store
from pretrain.checkpoint.state import Record
from pretrain.errors import RunError
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, tiny_config, train, whole_state

HALF, STEPS = 4, 8
WRITERS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "tensor 2 x pipeline 2": (4, {"tensor": 2, "pipeline": 2}),
    "data 4, zero 1": (4, {}),
    "tensor 2 x pipeline 2 x data 2 + sequence + virtual 2": (
        8,
        {"tensor": 2, "pipeline": 2, "sequence": True, "virtual": 2},
    ),
}
READERS: dict[str, tuple[int, dict[str, Any]]] = {
    **WRITERS,
    "data 2, zero 0": (2, {"zero": 0}),
    "tensor 4": (4, {"tensor": 4}),
}


def _record(step: int) -> Record:
    return Record(step, step, step * 256, {"samples": step * 8, "fingerprint": "f"}, tiny_config().model_dump(), "", {})


def _write(parallel: dict[str, Any], precision: str, directory: Path) -> Any:
    """Trains half way, saves, and trains on: (state at the save, curve of the second half)."""
    engine = build_engine(tiny_config(parallel=parallel, precision=precision))
    train(engine, range(HALF))
    store.save(directory, engine.state(), _record(HALF), b"tokenizer", keep=2)
    return whole_state(engine), train(engine, range(HALF, STEPS))


def _continue(parallel: dict[str, Any], precision: str, directory: Path) -> Any:
    engine = build_engine(tiny_config(parallel=parallel, precision=precision, run={"dir": "unused", "seed": 99}))
    checkpoint = store.newest_valid(directory, print)
    assert checkpoint is not None
    store.load(checkpoint, engine.state())
    engine.state_loaded(Record.read(checkpoint / store.RECORD).step)
    return whole_state(engine), train(engine, range(HALF, STEPS))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("writer", WRITERS)
def test_same_layout_goes_on_bit_for_bit(writer: str, precision: str, tmp_path: Path) -> None:
    world, parallel = WRITERS[writer]
    state, curve = run_ranks(world, _write, parallel, precision, tmp_path)[0]
    found_state, found_curve = run_ranks(world, _continue, parallel, precision, tmp_path)[0]
    assert found_curve == curve
    assert state.keys() == found_state.keys()
    for name in state:
        np.testing.assert_array_equal(found_state[name], state[name], err_msg=name)


@pytest.mark.parametrize("writer", ["tensor 2 x pipeline 2", "data 4, zero 1"])
@pytest.mark.parametrize("reader", READERS)
def test_another_layout_goes_on_from_the_same_state(writer: str, reader: str, tmp_path: Path) -> None:
    world, parallel = WRITERS[writer]
    state, curve = run_ranks(world, _write, parallel, "fp32", tmp_path)[0]
    world, parallel = READERS[reader]
    found_state, found_curve = run_ranks(world, _continue, parallel, "fp32", tmp_path)[0]
    assert any(name.startswith("exp_avg_sq/") and value.any() for name, value in found_state.items())
    for name in state:
        np.testing.assert_array_equal(found_state[name], state[name], err_msg=name)
    difference = np.array(found_curve) - np.array(curve)
    assert np.abs(difference[:, 0]).max() <= 1e-5


def _save_steps(directory: Path, steps: list[int], keep: int) -> None:
    engine = build_engine(tiny_config())
    for step in steps:
        store.save(directory, engine.state(), _record(step), b"tokenizer", keep)


def _newest(directory: Path) -> tuple[str | None, list[str]]:
    warnings: list[str] = []
    checkpoint = store.newest_valid(directory, warnings.append)
    return checkpoint.name if checkpoint else None, warnings


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    run_ranks(2, _save_steps, tmp_path, [1, 2, 3], 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damage_to_any_file_is_found_and_the_one_before_is_used(damage: str, tmp_path: Path) -> None:
    run_ranks(2, _save_steps, tmp_path / "whole", [1, 2], 2)
    files = sorted(path.name for path in (tmp_path / "whole" / "step-00000002").iterdir())
    assert {"record.json", "manifest.json", "tokenizer.model", ".metadata"} < set(files)
    for name in files:
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
        assert name in warnings[0] or name == "manifest.json"  # a digit of a digest flipped blames the file it is of


def test_unfinished_directory_is_not_a_checkpoint(tmp_path: Path) -> None:
    run_ranks(1, _save_steps, tmp_path, [1, 2], 2)
    (tmp_path / "step-00000002").rename(tmp_path / "step-00000002.tmp")
    assert run_ranks(1, _newest, tmp_path)[0] == ("step-00000001", [])


def _newest_error(directory: Path) -> str:
    with pytest.raises(RunError) as error:
        store.newest_valid(directory, lambda _: None)
    return str(error.value)


def test_nothing_valid_is_an_error_and_nothing_at_all_is_a_beginning(tmp_path: Path) -> None:
    assert run_ranks(1, _newest, tmp_path)[0] == (None, [])
    run_ranks(1, _save_steps, tmp_path, [1], 2)
    (tmp_path / "step-00000001" / "record.json").unlink()
    assert "no checkpoint" in run_ranks(1, _newest_error, tmp_path)[0]


def _save_error(directory: Path) -> str:
    engine = build_engine(tiny_config())
    with pytest.raises(RunError) as error:
        store.save(directory, engine.state(), _record(1), b"tokenizer", keep=2)
    return str(error.value)


def test_a_save_that_cannot_write_is_one_sentence_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the directory should be")
    for message in run_ranks(2, _save_error, tmp_path / "checkpoints"):
        assert message.startswith("saving ")
        assert "checkpoints" in message


def _save_without_room(directory: Path) -> tuple[str, str]:
    """Saves step 1; then step 2 with files limited to 20 kB, and with no room on the disk: (what each says)."""
    engine = build_engine(tiny_config())
    store.save(directory, engine.state(), _record(1), b"tokenizer", keep=2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    with pytest.raises(RunError) as cut_off:
        store.save(directory, engine.state(), _record(2), b"tokenizer", keep=2)
    usage = shutil.disk_usage(directory)._replace(free=100_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(RunError) as full:
            store.save(directory, engine.state(), _record(2), b"tokenizer", keep=2)
    return str(cut_off.value), str(full.value)


def test_a_save_that_runs_out_of_room_leaves_the_one_before(tmp_path: Path) -> None:
    for cut_off, full in run_ranks(2, _save_without_room, tmp_path):
        assert cut_off.startswith("saving ")
        assert "no space left on the disk of" in full
    assert run_ranks(1, _newest, tmp_path)[0] == ("step-00000001", [])
