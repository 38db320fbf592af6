"""A checkpoint written on one layout is read by any other, and the run goes on as if it had not stopped."""

import functools
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from pretrain.checkpoint import store
from pretrain.checkpoint.files import RECORD, Box, Digest, Manifest, Stored, seal
from pretrain.checkpoint.state import Record, check_same_run, scoring_config
from pretrain.engine.base import GlobalPart
from pretrain.errors import ConfigError, RunError
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, record, save, tiny_config, train, whole_state

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
    "context 2 x data 2": (4, {"context": 2}),
}


def _write(parallel: dict[str, Any], precision: str, directory: Path) -> Any:
    """Trains half way, saves, and trains on: (state at the save, curve of the second half)."""
    engine = build_engine(tiny_config(parallel=parallel, precision=precision))
    train(engine, range(HALF))
    save(directory, engine, HALF)
    return whole_state(engine), train(engine, range(HALF, STEPS))


def _continue(parallel: dict[str, Any], precision: str, directories: list[Path]) -> list[Any]:
    """One engine goes on from each of these checkpoints in turn: for each, (bytes read, bytes that the pieces of this
    rank are, state, curve of the second half)."""
    engine = build_engine(tiny_config(parallel=parallel, precision=precision, run={"dir": "unused", "seed": 99}))
    found = []
    for directory in directories:
        checkpoint = store.newest_valid(directory, print)
        assert checkpoint is not None
        read_bytes = store.load(checkpoint, engine.state())
        engine.state_loaded(Record.read(checkpoint / RECORD).step)
        found.append((read_bytes, _bytes(engine.state()), whole_state(engine), train(engine, range(HALF, STEPS))))
    return found


def _bytes(state: dict[str, GlobalPart]) -> int:
    return sum(4 * piece.value.numel() for part in state.values() for piece in part.pieces)


Written = Callable[[str, str], tuple[Path, Any, Any]]
Continued = Callable[[str, str], dict[str, list[Any]]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """(layout, precision) -> (where its checkpoint lies, what `_write` returned): made once, and changed by no test."""

    @functools.cache
    def write(layout: str, precision: str) -> tuple[Path, Any, Any]:
        directory = tmp_path_factory.mktemp("written")
        world, parallel = READERS[layout]
        return directory, *run_ranks(world, _write, parallel, precision, directory)[0]

    return write


@pytest.fixture(scope="module")
def continued(written: Written) -> Continued:
    """(layout, precision) -> by writer that it reads: what each rank's `_continue` found."""

    @functools.cache
    def go_on(layout: str, precision: str) -> dict[str, list[Any]]:
        writers = _writers_for(layout) if precision == "fp32" else [layout]
        world, parallel = READERS[layout]
        directories = [written(writer, precision)[0] for writer in writers]
        ranks = run_ranks(world, _continue, parallel, precision, directories)
        return {writer: [rank[index] for rank in ranks] for index, writer in enumerate(writers)}

    return go_on


def _writers_for(reader: str) -> list[str]:
    """Those of whose checkpoints it goes on from: in turn, so that nothing of one may be left when the next is read."""
    own = [reader] if reader in WRITERS else []
    more = ["context 2 x data 2"] if reader == "one rank" else []
    return list(dict.fromkeys(["tensor 2 x pipeline 2", *own, "data 4, zero 1", *more]))


@pytest.mark.parametrize(
    ("writer", "precision"),
    [*product(WRITERS, ["fp32"]), ("tensor 2 x pipeline 2", "bf16"), ("data 4, zero 1", "bf16")],
)
def test_same_layout_goes_on_bit_for_bit(writer: str, precision: str, written: Written, continued: Continued) -> None:
    _, state, curve = written(writer, precision)
    _, _, found_state, found_curve = continued(writer, precision)[writer][0]
    assert found_curve == curve
    assert state.keys() == found_state.keys()
    for name in state:
        np.testing.assert_array_equal(found_state[name], state[name], err_msg=name)


@pytest.mark.parametrize(
    ("writer", "reader"),
    [(writer, reader) for reader in READERS for writer in _writers_for(reader) if writer != reader],
)
def test_another_layout_goes_on_from_the_same_state(
    writer: str, reader: str, written: Written, continued: Continued
) -> None:
    _, state, curve = written(writer, "fp32")
    _, _, found_state, found_curve = continued(reader, "fp32")[writer][0]
    assert any(name.startswith("exp_avg_sq/") and value.any() for name, value in found_state.items())
    for name in state:
        np.testing.assert_array_equal(found_state[name], state[name], err_msg=name)
    difference = np.array(found_curve) - np.array(curve)
    assert np.abs(difference[:, 0]).max() <= 1e-5


@pytest.mark.parametrize("reader", READERS)
def test_each_rank_reads_just_the_bytes_it_needs(reader: str, continued: Continued) -> None:
    for read_bytes, needed_bytes, *_ in continued(reader, "fp32")["tensor 2 x pipeline 2"]:
        assert read_bytes == needed_bytes > 0


@pytest.mark.parametrize("writer", [*WRITERS, "context 2 x data 2"])
def test_files_are_plain_safetensors(writer: str, written: Written) -> None:
    directory, state, _ = written(writer, "fp32")
    found = {name: np.full(value.shape, np.nan, np.float32) for name, value in state.items()}
    for path in (directory / f"step-{HALF:08d}").glob("tensors-*.safetensors"):
        for key, values in load_file(path).items():
            name, offset = re.fullmatch(r"(.+)\[([0-9,]+)\]", key).groups()  # type: ignore[union-attr]
            starts = map(int, offset.split(","))
            found[name][tuple(slice(o, o + n) for o, n in zip(starts, values.shape, strict=True))] = values
    for name in state:
        np.testing.assert_array_equal(found[name], state[name], err_msg=name)


def _score(parallel: dict[str, Any], directory: Path) -> Any:
    """An engine that only scores, in bf16: (bytes read, bytes that the pieces of this rank are, weights as it holds
    them)."""
    engine = build_engine(tiny_config(parallel=parallel, precision="bf16"), train=False)
    state = engine.state()
    read_bytes = store.load(directory / f"step-{HALF:08d}", state)
    held = [
        (name, piece.offset, piece.value.detach().float().cpu().numpy())
        for name, part in state.items()
        for piece in part.pieces
    ]
    return read_bytes, _bytes(state), held


@pytest.mark.parametrize("parallel", [{}, {"pipeline": 2}, {"tensor": 2}], ids=str)
def test_an_engine_that_scores_reads_the_weights_only_and_rounds_them(
    parallel: dict[str, Any], written: Written
) -> None:
    directory, state, _ = written("data 4, zero 1", "fp32")
    for read_bytes, needed_bytes, held in run_ranks(2, _score, parallel, directory):
        assert read_bytes == needed_bytes > 0
        for name, offset, values in held:
            box = tuple(slice(o, o + n) for o, n in zip(offset, values.shape, strict=True))
            rounded = torch.from_numpy(state[name][box]).bfloat16().float().numpy()
            np.testing.assert_array_equal(values, rounded, err_msg=name)


# A manifest that somebody else wrote: consistent in itself, so only what it says can be held against it.

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
    "no record": (lambda m: m.files.pop("record.json"), "not that of a whole checkpoint"),
}


def _load_hostile(directory: Path) -> dict[str, str]:
    """What `load` says of each hostile manifest."""
    engine = build_engine(tiny_config())
    save(directory, engine, HALF)
    checkpoint = directory / f"step-{HALF:08d}"
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
    return store.whole(directory, manifest, name)


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
    save(directory, engine, HALF)
    file = directory / f"step-{HALF:08d}" / "tensors-00000.safetensors"
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


@pytest.mark.parametrize("config", [{"parallel": 5}, {"parallel": None}, {"run": 5, "batch": []}, {}], ids=str)
def test_a_record_of_no_config_is_one_sentence(config: dict[str, Any], tmp_path: Path) -> None:
    strange = replace(record(1), config=config)
    (tmp_path / RECORD).write_bytes(strange.encode())
    with pytest.raises(ConfigError, match=r"record\.json: "):
        scoring_config(tmp_path, [], one_rank=True)
    with pytest.raises(ConfigError, match="this run cannot go on"):
        check_same_run(strange, tiny_config())


def test_scoring_leaves_out_what_changes_no_number(tmp_path: Path) -> None:
    trained = {"tensor": 2, "pipeline": 2, "virtual": 2, "sequence": True, "context": 2, "recompute": "full"}
    config = tiny_config(parallel=trained).model_dump(mode="json")
    (tmp_path / RECORD).write_bytes(replace(record(1), config=config).encode())
    for one_rank, ranks in ((False, {"tensor": 2, "pipeline": 2}), (True, {})):
        assert scoring_config(tmp_path, [], one_rank).parallel == tiny_config(parallel=ranks).parallel


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    run_ranks(2, _write, {}, "fp32", tmp_path)
    assert "has shape" in run_ranks(1, _load_other, tmp_path)[0]


def _load_other(directory: Path) -> str:
    engine = build_engine(tiny_config(model={"hidden": 32}))
    with pytest.raises(RunError) as error:
        store.load(directory / f"step-{HALF:08d}", engine.state())
    return str(error.value)
