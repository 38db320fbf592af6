"""On a GPU a run is what it is on the CPU: the same initial weights, and in fp32 the same losses and gradient norms but
for rounding. Checkpoints of either go on on the other."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pretrain.checkpoint import store
from pretrain.config.run_config import RunConfig
from tests.helpers.families import FAMILIES, family_config, train_family
from tests.helpers.ranks import run_ranks
from tests.helpers.recurrent import language_model_config, translator_config
from tests.helpers.tiny import build_engine, save, tiny_config, whole_state
from tests.multirank.test_optimizers import OPTIMIZERS
from tests.multirank.test_trained_sets import CLASSES, SETS, set_config

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]
STEPS, HALF = 4, 2
TOLERANCE = 1e-4
"""of losses and norms, relative"""


def _run(config: RunConfig) -> tuple[str, dict[str, np.ndarray], list[tuple[float, float]]]:
    """Returns the kind of device, the initial state, and the loss and norm of some steps."""
    engine = build_engine(config)
    return engine.device.type, whole_state(engine), train_family(engine, range(1, STEPS + 1))


def _compare(config: RunConfig) -> None:
    (gpu, on_gpu, curve), (cpu, on_cpu, expected) = (run_ranks(1, _run, config, hide_gpus=h)[0] for h in (False, True))
    assert (gpu, cpu) == ("cuda", "cpu")
    assert on_gpu.keys() == on_cpu.keys()
    for name in on_cpu:
        np.testing.assert_array_equal(on_gpu[name], on_cpu[name], err_msg=name)
    np.testing.assert_allclose(curve, expected, rtol=TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str) -> None:
    _compare(family_config(family, model={"dropout": 0.1}, batch={"micro_sequences": 2}))


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_multi_token_prediction(family: str) -> None:
    _compare(family_config(family, model={"mtp": {"num_layers": 2, "loss_scaling_factor": 0.3}}))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(optimizer: str) -> None:
    _compare(tiny_config(optimizer=OPTIMIZERS[optimizer]))


@pytest.mark.parametrize("trained", SETS)
def test_every_trained_set(trained: str) -> None:
    _compare(set_config("bert", {"objective": CLASSES, "finetune": SETS[trained]}))


@pytest.mark.parametrize("cell", ["tanh", "lstm", "gru"])
def test_recurrent_networks(cell: str) -> None:
    _compare(language_model_config(model={"recurrent": {"cell": cell}}))
    _compare(translator_config({"cell": cell}))


def _begin(directory: Path) -> dict[str, np.ndarray]:
    engine = build_engine(tiny_config())
    train_family(engine, range(1, HALF + 1))
    save(directory, engine, HALF)
    return whole_state(engine)


def _go_on(directory: Path) -> tuple[dict[str, np.ndarray], list[tuple[float, float]]]:
    engine = build_engine(tiny_config(run={"dir": "unused", "seed": 99}))
    checkpoint = store.newest_valid(directory, print)
    assert checkpoint is not None
    store.load(checkpoint, engine.state())
    engine.state_loaded(HALF)
    return whole_state(engine), train_family(engine, range(HALF + 1, STEPS + 1))


@pytest.mark.parametrize("begins_on_gpu", [True, False], ids=["gpu to cpu", "cpu to gpu"])
def test_checkpoints_move_between_gpu_and_cpu(begins_on_gpu: bool, tmp_path: Path) -> None:
    saved = run_ranks(1, _begin, tmp_path, hide_gpus=not begins_on_gpu)[0]
    (stayed, expected), (moved, curve) = (
        run_ranks(1, _go_on, tmp_path, hide_gpus=hide)[0] for hide in (not begins_on_gpu, begins_on_gpu)
    )
    for name in saved:
        np.testing.assert_array_equal(stayed[name], saved[name], err_msg=name)
        np.testing.assert_array_equal(moved[name], saved[name], err_msg=name)
    np.testing.assert_allclose(curve, expected, rtol=TOLERANCE)
