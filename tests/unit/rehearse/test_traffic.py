"""Bytes of device memory that operators move: by hand, and of a logit with each choice of kernels."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.plan.device import find_device
from pretrain.rehearse.patches.install import install_patches
from pretrain.rehearse.rank_rehearsal import RankRehearsal
from pretrain.rehearse.recorder import Recorder
from tests.unit.rehearse.test_rehearse import rehearsed

ROWS, WIDTH = 8, 32
ONE = ROWS * WIDTH * 4
"""bytes of a tensor in fp32"""
INDICES, PICKED = ROWS * 8, ROWS * 4
CASES: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], object], float]] = {
    "sum of two": (lambda x, y, i: x + y, 3 * ONE),
    "in place": (lambda x, y, i: x.add_(y), 3 * ONE),
    "twice the same": (lambda x, y, i: x + x, 2 * ONE),
    "copy": (lambda x, y, i: x.copy_(y), 2 * ONE),
    "zeros": (lambda x, y, i: x.zero_(), ONE),
    "cast": (lambda x, y, i: x.bfloat16(), ONE + ONE / 2),
    "sum": (lambda x, y, i: x.sum(), ONE + 4),
    "view": (lambda x, y, i: x.view(WIDTH, ROWS).T, 0),
    "allocation": (lambda x, y, i: torch.empty_like(x), 0),
    "one row with all": (lambda x, y, i: x + x[:1].expand_as(x), ONE / ROWS + 2 * ONE),
    "pick": (lambda x, y, i: x.gather(1, i), INDICES + 2 * PICKED),
    "place": (lambda x, y, i: x.scatter_(1, i, y[:, :1].contiguous()), 2 * PICKED + INDICES + 2 * PICKED),
    "to the host": (lambda x, y, i: x.cpu(), ONE),
}


def _counted() -> dict[str, int]:
    """The bytes that each case moves, counted in a process with the simulated device."""
    device = find_device("h100")
    recorder = Recorder(device.memory_gib * 2**30)
    install_patches(load(RunConfig, "debug/gpt", ["run.dir=unused"]), device, recorder)
    found = {}
    with FakeTensorMode(allow_non_fake_inputs=True), recorder:
        x, y = (torch.empty(ROWS, WIDTH, device="cuda") for _ in range(2))
        index = torch.empty(ROWS, 1, dtype=torch.long, device="cuda")
        for name, (compute, _) in CASES.items():
            before = recorder.moved.total()
            compute(x, y, index)
            found[name] = recorder.moved.total() - before
    return found


def test_an_operator_moves_what_it_reads_and_writes() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(_counted).result()
    assert found == {name: expected for name, (_, expected) in CASES.items()}


def test_the_loss_moves_6_bytes_of_a_logit_with_kernels_of_its_own_and_36_with_torch_s() -> None:
    """In bf16, besides the product's own two."""

    def rank(kernels: str) -> RankRehearsal:
        found = rehearsed("debug/gpt", "parallel.pipeline=1", "parallel.tensor=1", f"run.kernels={kernels}", gpus=1)
        return found.ranks[0]

    plain, triton = rank("plain").moved_bytes, rank("triton").moved_bytes
    logits = 8 * 256 * 1024  # of a step
    kernels = ("row_sums", "row_gradients")
    assert [triton[name] / logits for name in kernels] == pytest.approx([2, 4], rel=0.02)
    # Copies in fp32 and back, the logarithms of probabilities, these, and their product with the loss's gradient.
    others = {"_to_copy": 12, "_log_softmax": 8, "exp_": 8, "mul_": 8}
    found = {name: (plain[name] - triton.get(name, 0)) / logits for name in others}
    assert found == pytest.approx(others, rel=0.02)


LAYERS: dict[str, tuple[str, ...]] = {
    "debug/gpt": ("model.attention={pattern: [dense]}", "parallel.pipeline=1", "parallel.tensor=1"),
    "llama2/7b": (
        "model.hidden=128", "model.heads=4", "model.ffn=344", "model.sequence_length=256", "batch.sequences=8",
        "batch.micro_sequences=4", "parallel.tensor=1", "parallel.sequence=false", "parallel.recompute=none",
    ),
}  # fmt: skip
OF_WEIGHTS = {"_foreach_norm", "_foreach_add_", "_fused_adamw_", "add_", "copy_", "mul_", "zero_"}
PRODUCTS = {"mm", "addmm", *(f"_scaled_dot_product_flash_attention{end}" for end in ("", "_backward"))}


@pytest.mark.parametrize(
    ("name", "kernels", "passes"),
    [
        ("debug/gpt", "triton", 49.5),
        ("debug/gpt", "plain", 75),
        ("llama2/7b", "triton", 54),
        ("llama2/7b", "plain", 183),
    ],
)
def test_between_products_a_layer_reads_and_writes_its_states_so_often(name: str, kernels: str, passes: float) -> None:
    """In bytes of hidden states, of which GPT's feed-forward layer has four times as many. In both directions; what is
    done to weights once a step is left out."""

    def moved(layers: int) -> dict[str, int]:
        found = rehearsed(name, *LAYERS[name], f"run.kernels={kernels}", f"model.layers={layers}", gpus=1)
        return found.ranks[0].moved_bytes

    fewer, more = moved(1), moved(2)
    of_layer = {key: more[key] - fewer.get(key, 0) for key in more.keys() - OF_WEIGHTS - PRODUCTS}
    assert sum(of_layer.values()) / (8 * 256 * 128 * 2) == pytest.approx(passes, rel=0.01)


def test_keys_that_queries_share_are_not_copied_for_each_of_them() -> None:
    """Flash attention reads them as they are, so that no gradients of copies are summed either. Values alone are
    copied, once, as they lie beside the queries; and `plan` counts what is kept."""

    small = ("model.layers=2", "model.hidden=256", "model.heads=8", "model.kv_heads=2", "model.head_dim=32")
    rows = ("model.sequence_length=512", "batch.sequences=2", "batch.micro_sequences=2", "parallel.tensor=1")
    found = rehearsed("llama3/3.2-1b", *small, "model.ffn=512", *rows, "parallel.recompute=none", gpus=1)
    (rank,), (planned,) = found.ranks, found.planned
    keys = 2 * 512 * 2 * 32 * 2  # bytes of a layer's keys, or of its values; of its queries four times as many
    sums = 2 * 8 * 512 * 4  # logarithms of a row's sum
    flash = rank.moved_bytes["_scaled_dot_product_flash_attention"]
    assert flash == pytest.approx(2 * (10 * keys + sums), rel=1e-3)
    assert rank.moved_bytes["sum"] < keys, "of losses alone"
    assert planned.peak_bytes == pytest.approx(rank.peak_bytes, rel=0.005)
