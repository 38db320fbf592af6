"""A rehearsal of loading reads what a rank reads of a checkpoint that another layout wrote, and finds what it lacks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pretrain.checkpoint import store
from pretrain.checkpoint.saver import Saver
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.model_spec.modules import parameter_specs
from pretrain.plan.device import find_device
from pretrain.rehearse.report import lines
from pretrain.rehearse.run import Rehearsal, rehearse
from pretrain.run_dir.paths import complete_checkpoints
from tests.helpers.families import family_config
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, record, save, tiny_config

LAYOUT = {"pipeline": 2, "zero": 1}
PRETRAINED = tiny_config(model={"tie_word_embeddings": False}, parallel={"tensor": 2})
CLASSES = {"name": "classification", "labels": ["a", "b", "c"]}


def _write(directory: Path) -> None:
    save(directory / "checkpoints", build_engine(tiny_config(parallel={"tensor": 2})), 1)
    with Saver(directory / "pretrained" / "checkpoints", 1, in_flight=0) as saver:
        tree = PRETRAINED.model_dump(mode="json")
        saver.save(build_engine(PRETRAINED).state(), replace(record(1), config=tree), b"tokenizer")


def _write_biased(directory: Path) -> None:
    config = family_config("biased_experts", parallel={"tensor": 2})
    with Saver(directory / "checkpoints", 1, in_flight=0) as saver:
        tree = config.model_dump(mode="json")
        saver.save(build_engine(config).state(), replace(record(1), config=tree), b"tokenizer")


def _load(checkpoint: Path) -> int:
    engine = build_engine(tiny_config(parallel=LAYOUT))
    return store.load(checkpoint, engine.state())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    run_ranks(2, _write, directory)
    return directory


@pytest.fixture(scope="module")
def checkpoint(runs: Path) -> Path:
    return complete_checkpoints(runs / "checkpoints")[-1]


def _rehearsed(checkpoint: Path | None, ranks: Sequence[int] = range(4), **sections: Any) -> Rehearsal:
    config = tiny_config(parallel=LAYOUT, **sections)
    return rehearse(config, 4, ranks=ranks, device=find_device("h100"), per_node=4, loads=True, checkpoint=checkpoint)


@pytest.mark.slow
def test_ranks_read_as_many_bytes_as_when_they_load(checkpoint: Path) -> None:
    found = _rehearsed(checkpoint)
    assert found.problems == []
    loads = [rank.load for rank in found.ranks]
    assert [one and one.read_bytes for one in loads] == run_ranks(4, _load, checkpoint)
    assert [one and one.files for one in loads] == [2] * 4  # both tensor ranks wrote something of everything
    (without,) = (rank.load for rank in _rehearsed(None, ranks=[3]).ranks)
    assert without
    assert loads[3]
    assert (without.read_bytes, without.tensors) == (loads[3].read_bytes, loads[3].tensors)
    assert "loads a checkpoint: reads " in "\n".join(lines(found, "tiny", "h100"))


@pytest.mark.slow
def test_biases_of_routers_are_read(tmp_path: Path) -> None:
    run_ranks(2, _write_biased, tmp_path)
    (checkpoint,) = complete_checkpoints(tmp_path / "checkpoints")
    config = family_config("biased_experts", parallel=LAYOUT)
    found = rehearse(config, 2, ranks=[0, 1], device=find_device("h100"), per_node=2, loads=True, checkpoint=checkpoint)
    assert found.problems == []


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
    (problem,) = _rehearsed(copy, ranks=[3]).problems
    assert "beyond the end of tensors-00001" in problem


def _finetuned(start: Path, finetune: dict[str, Any], **model: Any) -> RunConfig:
    tree = {
        "run": {"dir": "unused", "start_from": str(start)},
        "train": {"steps": 10},
        "batch": {"sequences": 2, "micro_sequences": 1},
        "model": model,
        "objective": CLASSES,
        "finetune": finetune,
        "optimizer": {"learning_rate": 1e-4},
    }
    return RunConfig.model_validate(tree)


@pytest.mark.slow
def test_a_run_that_starts_from_weights_reads_what_its_model_has_of_them(runs: Path) -> None:
    start = runs / "pretrained"
    (written,) = complete_checkpoints(start / "checkpoints")

    def rehearsed(config: RunConfig) -> Rehearsal:
        return rehearse(
            config, 1, ranks=[0], device=find_device("h100"), per_node=1, loads=True, checkpoint=written, jobs=1
        )

    found = rehearsed(_finetuned(start, {"lora": {"rank": 2}}))
    assert found.problems == []
    # All but the head, which classes replace; the matrices of LoRA and a classifier keep their initial values.
    read = [spec for spec in parameter_specs(PRETRAINED.model) if spec.name != "output_layer.weight"]
    load = found.ranks[0].load
    assert load is not None
    assert (load.tensors, load.read_bytes) == (len(read), sum(4 * spec.size for spec in read))

    (problem,) = rehearsed(_finetuned(start, {}, ffn=128)).problems
    assert problem.startswith("rank 0 cannot load a checkpoint: RunError: ")
    assert "has shape" in problem
    with pytest.raises(ConfigError, match="a run draws its weights"):
        rehearsed(_finetuned(start, {"weights": "random"}))
