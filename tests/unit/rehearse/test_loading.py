"""A rehearsal of loading reads what a rank reads of a checkpoint that another layout wrote, and finds what it lacks."""

from pathlib import Path
from typing import Any

import pytest

from pretrain.checkpoint import store
from pretrain.errors import ConfigError
from pretrain.plan.device import find_device
from pretrain.rehearse.report import lines
from pretrain.rehearse.run import Rehearsal, rehearse
from pretrain.run_dir.paths import complete_checkpoints
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, save, tiny_config

LAYOUT = {"pipeline": 2, "zero": 1}


def _write(directory: Path) -> None:
    save(directory, build_engine(tiny_config(parallel={"tensor": 2})), 1)


def _load(checkpoint: Path) -> int:
    engine = build_engine(tiny_config(parallel=LAYOUT))
    return store.load(checkpoint, engine.state())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoints")
    run_ranks(2, _write, directory)
    return complete_checkpoints(directory)[-1]


def _rehearsed(checkpoint: Path | None, **sections: Any) -> Rehearsal:
    config = tiny_config(parallel=LAYOUT, **sections)
    return rehearse(
        config, 4, ranks=range(4), device=find_device("h100"), per_node=4, loads=True, checkpoint=checkpoint
    )


def test_ranks_read_as_many_bytes_as_when_they_load(checkpoint: Path) -> None:
    found = _rehearsed(checkpoint)
    assert found.problems == []
    loads = [rank.load for rank in found.ranks]
    assert [one and one.read_bytes for one in loads] == run_ranks(4, _load, checkpoint)
    assert [one and one.files for one in loads] == [2] * 4  # both tensor ranks wrote something of everything
    without = [rank.load for rank in _rehearsed(None).ranks]
    assert [one and (one.read_bytes, one.tensors) for one in without] == [
        one and (one.read_bytes, one.tensors) for one in loads
    ]
    assert "loads a checkpoint: reads " in "\n".join(lines(found, "tiny", "h100"))


def test_a_tensor_of_another_shape_is_named(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"this run was started with model\.hidden=64"):
        _rehearsed(checkpoint, model={"hidden": 32})
    config = tiny_config(model={"hidden": 32})
    found = rehearse(config, 1, ranks=[0], device=find_device("h100"), per_node=1, what="score", loads=True,
                     checkpoint=checkpoint)  # fmt: skip
    (problem,) = found.problems
    assert problem.startswith("rank 0 cannot load a checkpoint: RunError: ")
    assert "has shape" in problem


def test_a_file_that_is_too_short_is_named(checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / checkpoint.name
    copy.mkdir()
    for file in checkpoint.iterdir():
        content = file.read_bytes()
        (copy / file.name).write_bytes(content[:-4096] if file.name.startswith("tensors-00001") else content)
    found = _rehearsed(copy)
    assert found.problems
    assert all("beyond the end of tensors-00001" in problem for problem in found.problems)
