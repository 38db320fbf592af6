"""Checkpoints that somebody else wrote, or changed: what they say is held against itself before anything is read."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.checkpoint import store
from pretrain.checkpoint.files import Box, Digest, Manifest, Stored, seal
from pretrain.checkpoint.state import Record, scoring_config
from pretrain.errors import RunError
from pretrain.run_dir.paths import RECORD
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, record, save, tiny_config

STEP = 4

# Manifests that are consistent in themselves, so only what they say can be held against them.

WEIGHT = "model/decoder.layers.0.mlp.linear_fc1.weight"  # [256, 64] on one rank: one box


def _with(manifest: Manifest, name: str, **changes: Any) -> None:
    """Changes the one box of a tensor."""
    stored = manifest.tensors[name]
    manifest.tensors[name] = Stored(stored.shape, (Box(**{**vars(stored.boxes[0]), **changes}),))


def _with_boxes(manifest: Manifest, *boxes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    file, position = manifest.tensors[WEIGHT].boxes[0].file, manifest.tensors[WEIGHT].boxes[0].position
    manifest.tensors[WEIGHT] = Stored((256, 64), tuple(Box(file, position, offset, shape) for offset, shape in boxes))


def _with_file(manifest: Manifest, name: str) -> None:
    manifest.files[name] = manifest.files[manifest.tensors[WEIGHT].boxes[0].file]


HOSTILE: dict[str, tuple[Callable[[Manifest], Any], str]] = {
    "a tensor is missing": (lambda m: m.tensors.pop(WEIGHT), f"has no tensor {WEIGHT}"),
    "moments are missing": (lambda m: m.tensors.pop("exp_avg/" + WEIGHT[6:]), "has no tensor exp_avg/decoder"),
    "a tensor too many": (lambda m: m.tensors.update({"model/more": m.tensors[WEIGHT]}), "has a tensor model/more"),
    "an optimizer too many": (lambda m: m.tensors.update({"momentum/x": m.tensors[WEIGHT]}), "a tensor momentum/x"),
    "another shape": (lambda m: m.tensors.update({WEIGHT: Stored((1 << 40, 64), ())}), f"{WEIGHT} has shape"),
    "no boxes": (lambda m: _with_boxes(m), f"lacks some values of {WEIGHT}"),
    "a gap": (lambda m: _with_boxes(m, ((0, 0), (256, 63))), f"lacks some values of {WEIGHT}"),
    "a gap behind an overlap": (
        lambda m: _with_boxes(m, ((0, 0), (128, 64)), ((64, 0), (128, 64))),
        f"has values of {WEIGHT} twice",
    ),
    "columns that overlap": (
        lambda m: _with_boxes(m, ((0, 0), (256, 33)), ((0, 32), (256, 32))),
        f"has values of {WEIGHT} twice",
    ),
    "a box beyond the tensor": (lambda m: _with_boxes(m, ((0, 0), (257, 64))), f"a box of {WEIGHT}"),
    "a box before the tensor": (lambda m: _with_boxes(m, ((-1, 0), (257, 64))), f"a box of {WEIGHT}"),
    "an empty box": (lambda m: _with_boxes(m, ((0, 0), (0, 64))), f"a box of {WEIGHT}"),
    "a box of another dimension": (lambda m: _with(m, WEIGHT, offset=(0,), shape=(16384,)), f"a box of {WEIGHT}"),
    "a box of no known file": (lambda m: _with(m, WEIGHT, file="tensors-00009.safetensors"), "where no file has any"),
    "a box before its file": (lambda m: _with(m, WEIGHT, position=-8), "where no file has any"),
    "a box across values": (lambda m: _with(m, WEIGHT, position=2), "where no file has any"),
    "a box beyond its file": (lambda m: _with(m, WEIGHT, position=1 << 50), "beyond the end of tensors-00000"),
    "a file in another place": (lambda m: _with_file(m, "../tensors-00000.safetensors"), "no file of a checkpoint"),
    "an absolute file": (lambda m: _with_file(m, "/etc/passwd"), "no file of a checkpoint"),
    "a directory": (lambda m: _with_file(m, ".."), "no file of a checkpoint"),
    "no record": (lambda m: m.files.pop("record.json"), "not that of a complete checkpoint"),
}


def _load_hostile(directory: Path) -> dict[str, str]:
    """What `load` says of each hostile manifest."""
    engine = build_engine(tiny_config())
    save(directory, engine, STEP)
    checkpoint = directory / f"step-{STEP:08d}"
    said = {}
    for name, (change, _) in HOSTILE.items():
        manifest = Manifest.read(checkpoint)
        whole = manifest.encode()
        change(manifest)
        (checkpoint / "manifest.json").write_bytes(manifest.encode())
        with pytest.raises(RunError) as error:
            store.load(checkpoint, engine.state())
        said[name] = str(error.value)
        (checkpoint / "manifest.json").write_bytes(whole)
    store.load(checkpoint, engine.state())
    return said


def test_a_hostile_manifest_is_one_sentence_before_anything_is_read(tmp_path: Path) -> None:
    for name, sentence in run_ranks(1, _load_hostile, tmp_path)[0].items():
        assert sentence.startswith("loading "), name
        assert HOSTILE[name][1] in sentence, name


def _in_boxes(directory: Path, shape: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> Any:
    """A tensor of ascending values, cut into boxes (offset, shape), as `whole` finds it."""
    name, file, position, placed = "model/w", "tensors-00000.safetensors", 0, []
    values = np.arange(math.prod(shape), dtype="<f4").reshape(shape)
    with (directory / file).open("wb") as written:
        for offset, size in boxes:
            placed.append(Box(file, position, offset, size))
            position = placed[-1].end
            written.write(values[tuple(slice(o, o + n) for o, n in zip(offset, size, strict=True))].tobytes())
    manifest = Manifest({file: Digest(position, "")}, {name: Stored(shape, tuple(placed))})
    return store.read_full_tensor(directory, manifest, name)


def test_a_row_in_very_many_boxes_takes_no_longer_to_check_than_to_read(tmp_path: Path) -> None:
    count, started_s = 20_000, time.perf_counter()
    found = _in_boxes(tmp_path, (1, count), [((0, column), (1, 1)) for column in range(count)])
    assert time.perf_counter() - started_s < 20, "to compare each box with each takes minutes"
    np.testing.assert_array_equal(found[0], np.arange(count))


def test_boxes_of_parts_of_rows_that_overlap_are_found(tmp_path: Path) -> None:
    apart = [((0, 3), (1, 5)), ((0, 0), (1, 3)), ((1, 0), (2, 4)), ((1, 4), (1, 4)), ((2, 4), (1, 4))]
    np.testing.assert_array_equal(_in_boxes(tmp_path, (3, 8), apart).reshape(-1), np.arange(24))
    for more in [((0, 7), (1, 1)), ((2, 3), (1, 2)), ((0, 4), (3, 1)), ((1, 4), (1, 4))]:
        with pytest.raises(RunError, match="has values of model/w twice"):
            _in_boxes(tmp_path, (3, 8), [*apart, more])


def test_a_tensor_of_no_dimensions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="model/w has no dimensions"):
        _in_boxes(tmp_path, (), [((), ())])


def _load_replaced(directory: Path, outside: Path) -> list[str]:
    """What `load` says where the file of tensors is a link, a pipe, and a directory."""
    engine = build_engine(tiny_config())
    save(directory, engine, STEP)
    file = directory / f"step-{STEP:08d}" / "tensors-00000.safetensors"
    file.rename(outside)
    said = []
    for make in (lambda: file.symlink_to(outside), lambda: os.mkfifo(file), file.mkdir):
        make()
        with pytest.raises(RunError) as error:
            store.load(file.parent, engine.state())
        said.append(str(error.value))
        assert file.name in (store.verify(file.parent) or "")
        if file.is_dir():
            file.rmdir()
        else:
            file.unlink()
    return said


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    for sentence in run_ranks(1, _load_replaced, tmp_path / "checkpoints", tmp_path / "outside")[0]:
        assert "tensors-00000.safetensors" in sentence


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"\x80\x04N.", b"[" * 100_000, b'{"files": {}, "tensors": {}}', b'{"files": 1' + b"0" * 10_000],
    ids=range(7),
)
def test_a_manifest_that_is_none_is_damage(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(seal(content) if content else b"")
    with pytest.raises(RunError, match=r"manifest\.json"):
        Manifest.read(tmp_path)


def test_a_manifest_that_is_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    writer = os.open(tmp_path / "manifest.json", os.O_RDWR)
    with pytest.raises(RunError, match="not a plain file"):
        Manifest.read(tmp_path)
    os.close(writer)


def test_a_record_that_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    path, outside = tmp_path / RECORD, tmp_path / "outside"
    outside.write_bytes(record(1).encode())
    path.symlink_to(outside)
    with pytest.raises(RunError, match=r"record\.json cannot be read"):
        Record.read(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RunError, match=r"record\.json is not a plain file"):
        scoring_config(tmp_path, [], one_rank=True)
    path.unlink()
    path.write_bytes(record(1).encode() + b" " * (16 << 20))
    with pytest.raises(RunError, match=r"record\.json is too large"):
        Record.read(path)
