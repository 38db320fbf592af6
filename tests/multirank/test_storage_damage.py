"""Damaged checkpoints: all damage is found, and what is valid is used; lost access is no damage, but an error."""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.checkpoint import files, store
from pretrain.errors import RunError
from pretrain.run_dir.paths import complete_checkpoints
from tests.helpers.breadth import slow
from tests.helpers.ranks import run_ranks
from tests.helpers.storage import SMALL, contents, names_in, newest, newest_error, save_steps


def _flips(data: bytes, where: list[tuple[int, int]]) -> list[bytes]:
    """`data` with one bit changed, for each (byte, bit) of `where`."""
    return [data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :] for byte, bit in where]


@pytest.mark.slow
def test_every_flipped_bit_and_every_cut_is_found(tmp_path: Path) -> None:
    """Every byte of the small files, in every bit or in one of them; every length to which they could be cut; a sample
    of both for the tensors."""
    run_ranks(2, save_steps, tmp_path, [1], 2, SMALL)
    checkpoint = tmp_path / "step-00000001"
    random = np.random.default_rng(0)
    names = names_in(checkpoint)
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
    run_ranks(2, save_steps, tmp_path / "whole", [1, 2], 2)
    for name in names_in(tmp_path / "whole" / "step-00000002"):
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
        checkpoint, warnings = run_ranks(2, newest, directory)[0]
        assert checkpoint == "step-00000001", name
        assert name in warnings[0]
        assert names_in(directory) == ["step-00000001", "step-00000002.damaged"]


def test_nothing_valid_is_an_error_and_nothing_at_all_is_a_beginning(tmp_path: Path) -> None:
    assert run_ranks(1, newest, tmp_path / "new")[0] == (None, [])
    run_ranks(1, save_steps, tmp_path, [1], 2)
    (tmp_path / "step-00000001" / "record.json").unlink()
    assert "no checkpoint" in run_ranks(1, newest_error, tmp_path)[0]
    assert "no checkpoint" in run_ranks(1, newest_error, tmp_path)[0], "nor is one that was set aside a beginning"


@pytest.mark.parametrize(
    "what",
    ["step-00000002", slow("step-00000002/manifest.json"), slow("step-00000002/record.json"), slow(".")],
)
def test_lost_permission_is_an_error_and_changes_nothing(what: str, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    run_ranks(2, save_steps, directory, [1, 2], 2)
    before, mode = contents(directory), (directory / what).stat().st_mode
    (directory / what).chmod(0)
    messages = run_ranks(2, newest_error, directory)
    (directory / what).chmod(mode)
    for message in messages:
        assert "Permission denied" in message
        assert str(directory / what) in message
        assert "restore access" in message
    assert contents(directory) == before


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
            return newest(directory)
        except RunError as error:
            return str(error)


@pytest.mark.parametrize("number", [errno.ESTALE, slow(errno.ETIMEDOUT), slow(errno.EPERM), slow(errno.EMFILE)])
def test_an_error_that_is_not_the_files_is_no_damage(number: int, tmp_path: Path) -> None:
    run_ranks(2, save_steps, tmp_path, [1, 2], 2)
    for message in run_ranks(2, _newest_with, number, tmp_path):
        assert message.startswith("verifying ")
        assert f"{os.strerror(number)} ({tmp_path / 'step-00000002' / 'tensors-00001.safetensors'})" in message
    assert names_in(tmp_path) == ["step-00000001", "step-00000002"]


def test_a_disk_that_cannot_read_a_file_has_damaged_it(tmp_path: Path) -> None:
    run_ranks(2, save_steps, tmp_path, [1, 2], 2)
    for checkpoint, warnings in run_ranks(2, _newest_with, errno.EIO, tmp_path):
        assert checkpoint == "step-00000001"
        assert f"tensors-00001.safetensors cannot be read ({os.strerror(errno.EIO)})" in warnings[0]


def test_setting_aside_where_nothing_can_be_written_is_one_sentence(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    run_ranks(2, save_steps, directory, [1, 2], 2)
    (directory / "step-00000002" / "record.json").write_bytes(b"")
    directory.chmod(0o555)
    messages = run_ranks(2, newest_error, directory)
    directory.chmod(0o755)
    for message in messages:
        assert message.startswith("setting aside ")
        assert "Permission denied" in message
    assert names_in(directory) == ["step-00000001", "step-00000002"]


def _first_valid(directory: Path) -> tuple[str, list[str]]:
    warnings: list[str] = []
    return store.first_valid(complete_checkpoints(directory)[::-1], warnings.append).name, warnings


def test_scoring_passes_over_a_damaged_checkpoint_and_changes_nothing(tmp_path: Path) -> None:
    run_ranks(2, save_steps, tmp_path, [1, 2], 2)
    (tmp_path / "step-00000002" / "tensors-00001.safetensors").write_bytes(b"")
    before = contents(tmp_path)
    checkpoint, warnings = run_ranks(2, _first_valid, tmp_path)[0]
    assert checkpoint == "step-00000001"
    assert "step-00000002/tensors-00001.safetensors" in warnings[0]
    assert contents(tmp_path) == before


def _raised(call: Callable[[], object]) -> str:
    with pytest.raises(RunError) as error:
        call()
    return str(error.value)


def _first_valid_error(candidates: list[Path]) -> str:
    return _raised(lambda: store.first_valid(candidates, pytest.fail))


def test_a_damaged_checkpoint_named_directly_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    run_ranks(1, save_steps, tmp_path, [1], 2)
    (tmp_path / "step-00000001" / "record.json").unlink()
    for message in run_ranks(2, _first_valid_error, [tmp_path / "step-00000001"]):
        assert "record.json cannot be read" in message
        assert "choose another" in message
