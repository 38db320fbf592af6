"""A checkpoint written on one layout is read by any other, and the run goes on as if it had not stopped."""

import functools
import re
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
from pretrain.checkpoint.state import Record, check_same_run, scoring_config
from pretrain.engine.base import GlobalPart
from pretrain.errors import ConfigError, RunError
from pretrain.run_dir.paths import RECORD
from tests.helpers.breadth import asked, only, slow
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, record, save, tiny_config, train, whole_state

HALF, STEPS = 2, 5
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


FIRST = "tensor 2 x pipeline 2"
"""whose checkpoint every layout reads"""
QUICK_WRITERS = (FIRST, "data 4, zero 1")
QUICK_READERS = (FIRST, "tensor 2 x pipeline 2 x data 2 + sequence + virtual 2", "context 2 x data 2")


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
def continued(request: pytest.FixtureRequest, written: Written) -> Continued:
    """(layout, precision) -> by writer that it reads in this session: what each rank's `_continue` found."""
    needed = asked(request, "writer") | {FIRST}

    @functools.cache
    def go_on(layout: str, precision: str) -> dict[str, list[Any]]:
        writers = [writer for writer in _writers_for(layout) if writer in needed] if precision == "fp32" else [layout]
        world, parallel = READERS[layout]
        directories = [written(writer, precision)[0] for writer in writers]
        ranks = run_ranks(world, _continue, parallel, precision, directories)
        return {writer: [rank[index] for rank in ranks] for index, writer in enumerate(writers)}

    return go_on


def _writers_for(reader: str) -> list[str]:
    """Layouts whose checkpoints `reader` resumes from in turn: nothing of one may remain when the next is read."""
    own = [reader] if reader in WRITERS else []
    more = ["context 2 x data 2"] if reader == "one rank" else []
    return list(dict.fromkeys([FIRST, *own, "data 4, zero 1", *more]))


@pytest.mark.parametrize(
    ("writer", "precision"),
    only([(FIRST, "fp32"), ("data 4, zero 1", "bf16")], product(WRITERS, ["fp32", "bf16"])),
)
def test_same_layout_goes_on_bit_for_bit(writer: str, precision: str, written: Written, continued: Continued) -> None:
    _, state, curve = written(writer, precision)
    _, _, found_state, found_curve = continued(writer, precision)[writer][0]
    assert found_curve == curve
    assert state.keys() == found_state.keys()
    for name in state:
        np.testing.assert_array_equal(found_state[name], state[name], err_msg=name)


PAIRS = [(writer, reader) for reader in READERS for writer in _writers_for(reader) if writer != reader]


@pytest.mark.parametrize(
    ("writer", "reader"),
    only([pair for pair in PAIRS if pair[0] in QUICK_WRITERS and pair[1] in QUICK_READERS], PAIRS),
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


@pytest.mark.parametrize("reader", only(QUICK_READERS, READERS))
def test_each_rank_reads_just_the_bytes_it_needs(reader: str, continued: Continued) -> None:
    for read_bytes, needed_bytes, *_ in continued(reader, "fp32")[FIRST]:
        assert read_bytes == needed_bytes > 0


@pytest.mark.parametrize("writer", only(QUICK_WRITERS, [*WRITERS, "context 2 x data 2"]))
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


@pytest.mark.parametrize("parallel", [slow({}), slow({"pipeline": 2}), {"tensor": 2}], ids=str)
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


@pytest.mark.parametrize("config", [{"parallel": 5}, {"parallel": None}, {"run": 5, "batch": []}, {}], ids=str)
def test_a_record_of_no_config_is_one_sentence(config: dict[str, Any], tmp_path: Path) -> None:
    strange = replace(record(1), config=config)
    (tmp_path / RECORD).write_bytes(strange.encode())
    with pytest.raises(ConfigError, match=r"record\.json: "):
        scoring_config(tmp_path, [], one_rank=True)
    with pytest.raises(ConfigError, match="this run cannot resume"):
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
