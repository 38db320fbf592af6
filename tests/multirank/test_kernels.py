"""Kernels that are compiled together: the same run as with torch's own operations."""

from pathlib import Path

import pytest
import torch

from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine import device
from pretrain.errors import ConfigError
from pretrain.models.kernels import check_compiler, compiled
from pretrain.random.dropout import Dropout, dropout
from tests.helpers.families import family_config
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, tiny_config

DROPOUT = {"dropout": 0.1, "ffn_dropout": 0.1}


def _losses_and_graphs(configs: list[RunConfig]) -> list[tuple[list[float], int]]:
    """Losses of three steps of each config, and the number of graphs that were compiled for them."""
    device.install()
    found = []
    for config in configs:
        engine, stream = build_engine(config), SyntheticStream(config)
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        count = config.batch.sequences
        results = [
            engine.train_step(stream.batch(step * count, count, engine.data_rank, engine.data_world), 1e-2, step)
            for step in range(3)
        ]
        losses = [result.loss_sum / result.token_count for result in results]
        found.append((losses, torch._dynamo.utils.counters["stats"]["unique_graphs"] - before))
    return found


@pytest.mark.slow
def test_compiled_kernels_make_the_same_run_with_the_same_dropout() -> None:
    compare_kernels()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 65, 130), (16, 2, 128), (2, 3, 70, 66)], ids=str)
def test_compiled_dropout_drops_the_same_elements(shape: tuple[int, ...]) -> None:
    compare_dropout(shape, torch.device("cpu"))


def compare_dropout(shape: tuple[int, ...], on: torch.device) -> None:
    """Asserts it, at the beginning of a sequence and further on."""
    one, fused = Dropout(0.1, ("tensor",), rows_second=len(shape) == 3), compiled(on)
    for rank in (0, 3):
        one.place("layer", {"tensor": (rank, 4)})
        torch.default_generator.manual_seed(2**64 - 2 + rank % 2)
        x = torch.ones(shape, device=on)
        drawn = one.drawn(x.shape, on)
        expected = dropout(x, drawn)
        assert 0.05 < (expected == 0).float().mean() < 0.15
        for _ in range(3):
            never_written = [torch.full((size,), -1, device=on) for size in range(1, 2 * x.numel(), x.numel() // 7)]
            del never_written  # so that what a kernel forgets to write is not, by chance, what was right before
            assert torch.equal(fused.dropout(x, drawn), expected)


def compare_kernels() -> None:
    """Asserts it, on a GPU if there is one."""
    kinds = {
        "gpt": tiny_config(model=DROPOUT),
        "gpt in bf16": tiny_config(model=DROPOUT, precision="bf16"),
        "gated, without biases": family_config("llama"),
        "norms in fp32": family_config("gemma", model=DROPOUT),
    }
    both = [
        config.model_copy(update={"run": config.run.model_copy(update={"kernels": kernels})})
        for config in kinds.values()
        for kernels in ("plain", "compiled")
    ]
    found = run_ranks(1, _losses_and_graphs, both, timeout_s=280)[0]
    for name, (plain, none), (together, graphs) in zip(kinds, found[::2], found[1::2], strict=True):
        assert (none, graphs > 0) == (0, True), f"{name}: {graphs} graphs compiled"
        assert together == pytest.approx(plain, abs=2e-2 if "bf16" in name else 1e-4), name
        assert max(plain) - min(plain) > 0.02, f"{name}: weights change"


def test_without_a_compiler_compiled_kernels_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError, match=r"run.kernels=compiled requires a C\+\+ compiler"):
        check_compiler(torch.device("cpu"))
