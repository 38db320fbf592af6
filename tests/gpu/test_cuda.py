"""One GPU: the engine, the attention patterns, checkpoints and generation on CUDA. `make test-gpu` runs these."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from data_pipeline.batch import Rows
from pretrain.attention.largest_scores import largest_scores
from pretrain.checkpoint import store
from pretrain.checkpoint.saver import Saver
from pretrain.config.attention import Banded, Dense
from pretrain.config.patterns.bands import LocalGlobal
from pretrain.config.patterns.base import PatternSettings
from pretrain.config.patterns.blocks import BigBird
from pretrain.config.patterns.factorized import Fixed, Strided
from pretrain.data.synthetic import SyntheticStream
from pretrain.observe.own_seconds import ProductSeconds
from pretrain.preflight import machine
from pretrain.random.dropout import Dropout
from pretrain.verify.departure import EXACT
from pretrain.verify.jobs import ONE_RANK, plan
from pretrain.verify.run import JobResult, Verification
from tests.helpers.attention import attend_by_pattern, case_of, head_rules
from tests.helpers.decoding import greedy
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import ROWS, VOCABULARY, build_engine, record, tiny_config, train, whole_state
from tests.multirank.test_half_sums import assert_alike, departures
from tests.multirank.test_kernels import compare_dropout, compare_kernels
from tests.multirank.test_output_linear import CASES, assert_like, judged
from tests.multirank.test_packing import seen
from tests.unit.attention.test_patterns import oracle

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]
STEPS, HALF = 12, 6
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def _curve(precision: str, recompute: str = "none", dropout: float = 0.0) -> list[tuple[float, float]]:
    model = {**tiny_config().model.model_dump(), "dropout": dropout, "attention_dropout": dropout}
    config = tiny_config(
        model=model,
        precision=precision,
        parallel={"recompute": recompute},
        run={"dir": "unused", "seed": 7, "deterministic": True},
    )
    engine = build_engine(config)
    assert engine.device.type == "cuda"
    assert all(parameter.value.is_cuda for parameter in engine.parameters)
    return train(engine, range(STEPS))


in_fp8 = pytest.param(
    "fp8",
    marks=pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="no fp8 in this GPU"
    ),
)


@pytest.mark.parametrize("precision", ["fp32", "bf16", in_fp8])
def test_loss_starts_at_chance_and_falls(precision: str) -> None:
    losses, norms = np.array(run_ranks(1, _curve, precision)[0]).T
    assert losses[0] == pytest.approx(np.log(VOCABULARY), abs=0.2)
    assert losses[-1] < losses[0] - 0.3
    assert np.isfinite(norms).all()


@pytest.mark.parametrize("precision", ["bf16", in_fp8])
def test_coarser_numbers_follow_fp32(precision: str) -> None:
    coarse, full = (np.array(run_ranks(1, _curve, chosen)[0])[:, 0] for chosen in (precision, "fp32"))
    assert np.abs(coarse - full).max() < 0.05


@pytest.mark.parametrize("family", ["gpt", "bert", "t5"])
def test_bf16_sums_the_gradients_of_many_tokens_in_fp32(family: str) -> None:
    assert_alike(run_ranks(1, departures, family, "bf16")[0])


def test_largest_scores_of_bf16_are_in_fp32() -> None:
    """Products of numbers of 8 bits each are those of the CPU but for the order of sums."""
    q, k = torch.randn(2, 2, 4, 300, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    real = torch.arange(300) < torch.tensor([300, 120])[:, None]
    rules = head_rules(Banded(window=64), 4)
    expected = largest_scores(case_of(rules, q, k), q, k, real)
    on_gpu = [x.cuda() for x in (q, k, real)]
    found = largest_scores(case_of(rules, *on_gpu[:2]), *on_gpu)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=0)


def _waits() -> list[str]:
    engine = build_engine(tiny_config(precision="bf16"))
    train(engine, range(2))
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        train(engine, range(2, 3))
    torch.cuda.set_sync_debug_mode("default")
    told = [f"{warning.filename}:{warning.lineno} {warning.message}" for warning in found]
    return [line for line in told if "called a synchronizing CUDA operation" in line]


def test_a_step_waits_once() -> None:
    found = run_ranks(1, _waits)[0]
    assert len(found) == 1, "\n".join(found)
    assert "engine/megatron/engine.py" in found[0]


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_deterministic_run_repeats_bit_for_bit(precision: str, recompute: str) -> None:
    assert run_ranks(1, _curve, precision, recompute)[0] == run_ranks(1, _curve, precision, recompute)[0]


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_drops_out_what_forward_did(recompute: str) -> None:
    """Rounding may differ, as recomputed products need not run in the same kernels; another mask would show."""
    plain, again = (np.array(run_ranks(1, _curve, "fp32", how, 0.1)[0]) for how in ("none", recompute))
    np.testing.assert_allclose(again, plain, rtol=1e-4)


def test_dropout_masks_are_those_of_the_cpu() -> None:
    dropout, shape = Dropout(0.1, shared_by=("tensor",)), torch.Size([3, 4, 65, 130])
    dropout.place("layer", {"tensor": (1, 2)})
    torch.default_generator.manual_seed(2**64 - 2)
    on_gpu, on_cpu = (dropout.drawn(shape, torch.device(kind)).mask(shape) for kind in ("cuda", "cpu"))
    assert torch.equal(on_gpu.cpu(), on_cpu)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("length", [7, 32, 33, 96, 100])
@pytest.mark.parametrize("name", ["dense", "banded"])
def test_pattern_equals_dense_mask_oracle(name: str, length: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(length)
    inputs = [torch.randn(2, 3, length, 64, generator=random, requires_grad=True) for _ in range(3)]
    window = 32
    expected = oracle(*inputs, window=window if name == "banded" else None)
    expected_gradients = torch.autograd.grad(expected.square().sum(), inputs)
    on_device = [x.detach().to("cuda", dtype).requires_grad_() for x in inputs]
    settings = Banded(window=window) if name == "banded" else Dense()
    found = attend_by_pattern(settings, *on_device)
    gradients = torch.autograd.grad(found.float().square().sum(), on_device)
    _assert_near(found, expected, TOLERANCE[dtype])
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        _assert_near(gradient, expected_gradient, TOLERANCE[dtype])


@pytest.mark.parametrize(
    "settings",
    [Strided(stride=16), Fixed(stride=16, summary=2), LocalGlobal(window=16, tokens=4), BigBird(block=16)],
    ids=lambda settings: settings.name,
)
def test_patterns_that_share_queries_equal_those_of_the_cpu(settings: PatternSettings) -> None:
    """Runs compiled flex_attention forward and backward."""
    random = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 3, 600, 64, generator=random, requires_grad=True) for _ in range(3)]
    on_device = [x.detach().to("cuda").requires_grad_() for x in inputs]
    expected, found = (attend_by_pattern(settings, *x) for x in (inputs, on_device))
    _assert_near(found, expected, TOLERANCE[torch.float32])
    expected_gradients = torch.autograd.grad(expected.square().sum(), inputs)
    gradients = torch.autograd.grad(found.square().sum(), on_device)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        _assert_near(gradient, expected_gradient, TOLERANCE[torch.float32])


def _assert_near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Within `tolerance` of the largest expected value."""
    difference = (found.detach().float().cpu() - expected.detach()).abs().max()
    assert difference <= tolerance * max(1.0, expected.detach().abs().max().item())


def test_dense_bf16_attention_runs_in_a_fused_kernel() -> None:
    """Flash, or cuDNN's like it; not the memory-efficient one, nor plain products."""
    shape = (256, 2, 4, 64)  # as the engine hands them over: positions first
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).permute(1, 2, 0, 3) for _ in range(3))
    with _Names() as seen:
        attend_by_pattern(Dense(), q, k, v)
    kernels = {name for name in seen.names if "scaled_dot_product" in name}
    assert kernels
    assert all("flash" in name or "cudnn" in name for name in kernels), kernels


def test_grouped_keys_are_read_as_they_are_and_give_what_copies_give() -> None:
    """Forward and backward, of dense causal rows in bf16."""
    random = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(256, 2, heads, 64, generator=random).to("cuda", torch.bfloat16).permute(1, 2, 0, 3).requires_grad_()
        for heads in (8, 2, 2)
    )
    with _Names() as seen:
        found = attend_by_pattern(Dense(), q, k, v)
    assert not any("repeat" in name or "index_select" in name for name in seen.names), seen.names
    expected = attend_by_pattern(Dense(), q, *(x.repeat_interleave(4, dim=1) for x in (k, v)))
    _assert_near(found, expected.cpu().float(), TOLERANCE[torch.bfloat16])
    gradients = (torch.autograd.grad(out.float().square().sum(), (q, k, v)) for out in (found, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        _assert_near(gradient, expected_gradient.cpu().float(), TOLERANCE[torch.bfloat16])


class _Names(TorchDispatchMode):
    """Remembers the names of the operations that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


DEEPSPEED = {stage: {"zero": stage, "zero_engine": "deepspeed"} for stage in (1, 2, 3)}
SHARDINGS: dict[str, dict[str, Any]] = {
    **{f"zero {z}": parallel for z, parallel in DEEPSPEED.items()},
    **{f"zero {z}, optimizer offloaded": {**parallel, "offload_optimizer": True} for z, parallel in DEEPSPEED.items()},
    "zero 3, all offloaded": {**DEEPSPEED[3], "offload_optimizer": True, "offload_parameters": True},
    "zero 2, overlap": {**DEEPSPEED[2], "overlap": True},
    "zero 3, recomputed": {**DEEPSPEED[3], "recompute": "full"},
}


def _sharded_curve(parallel: dict[str, Any], precision: str) -> list[tuple[float, float]]:
    return train(build_engine(tiny_config(precision=precision, parallel=parallel)), range(STEPS))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", SHARDINGS)
def test_deepspeed_on_one_gpu_follows_plain_data_parallelism(name: str, precision: str) -> None:
    plain = np.array(run_ranks(1, _sharded_curve, {"zero": 0}, precision)[0])
    found = np.array(run_ranks(1, _sharded_curve, SHARDINGS[name], precision)[0])
    tolerance = 1e-5 if precision == "fp32" else 5e-3
    np.testing.assert_allclose(found[:, 0], plain[:, 0], atol=tolerance)
    np.testing.assert_allclose(found[:, 1], plain[:, 1], rtol=10 * tolerance)


def _host_and_device() -> tuple[set[str], set[str]]:
    """Where weights and moments of an engine with everything offloaded lie, and what it computes on."""
    engine = build_engine(tiny_config(parallel=SHARDINGS["zero 3, all offloaded"], precision="bf16"))
    train(engine, range(2))
    assert engine.sharding is not None
    states = {tensor.device.type for o in engine.sharding.owned() for tensor in (o.main, *o.moments.values())}
    return states | {r.value.device.type for r in engine.sharding.in_use()}, {engine.device.type}


def test_what_is_offloaded_lies_in_host_memory() -> None:
    assert run_ranks(1, _host_and_device)[0] == ({"cpu"}, {"cuda"})


def _write(precision: str, directory: Path) -> Any:
    config = tiny_config(precision=precision, run={"dir": "unused", "seed": 7, "deterministic": True})
    engine = build_engine(config)
    train(engine, range(HALF))
    with Saver(directory, keep=2, in_flight=1) as saver:
        saver.save(engine.state(), record(HALF), b"tokenizer")
        return whole_state(engine), train(engine, range(HALF, STEPS))  # while the copy is being written


def _continue(precision: str, directory: Path) -> Any:
    engine = build_engine(tiny_config(precision=precision, run={"dir": "unused", "seed": 99, "deterministic": True}))
    checkpoint = store.newest_valid(directory, print)
    assert checkpoint is not None
    store.load(checkpoint, engine.state())
    engine.state_loaded(HALF)
    return whole_state(engine), train(engine, range(HALF, STEPS))


@pytest.mark.parametrize("precision", ["fp32", "bf16", in_fp8])
def test_run_goes_on_from_a_checkpoint_bit_for_bit(precision: str, tmp_path: Path) -> None:
    state, curve = run_ranks(1, _write, precision, tmp_path)[0]
    found_state, found_curve = run_ranks(1, _continue, precision, tmp_path)[0]
    assert found_state.keys() == state.keys()
    for name in state:
        np.testing.assert_array_equal(found_state[name], state[name], err_msg=name)
    assert found_curve == curve


def _continuations() -> tuple[list[list[int]], list[list[int]]]:
    """Greedy continuations from the cache, and from whole forward passes."""
    engine = build_engine(tiny_config())
    train(engine, range(STEPS))
    prompts, count = [[1, 2, 3], [7, 8, 9, 10, 11, 12], [5]], 10
    whole = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(engine.logits(Rows.of(np.array([ids]), np.array([ids])))[0][0, -1].argmax()))
        whole.append(ids[len(prompt) :])
    return greedy(engine, prompts, count), whole


def test_cached_generation_equals_whole_forward_passes() -> None:
    cached, whole = run_ranks(1, _continuations)[0]
    assert cached == whole


def _verify() -> list[tuple[str, bool, dict[str, float]]]:
    dist.destroy_process_group()
    jobs = plan(tiny_config(precision="bf16"), [ONE_RANK])
    rows: list[JobResult] = []
    Verification(dist.HashStore(), rank=0, world=1, steps=3).run(jobs, rows.append)
    return [(row.error or "", row.same, row.verdict.largest if row.verdict else {}) for row in rows]


def test_verify_runs_job_after_job_on_one_gpu() -> None:
    """Process groups over NCCL made and left again; what is gathered comes from the GPU."""
    (found,) = run_ranks(1, _verify)
    assert [(error, same) for error, same, _ in found] == [("", True)] * 2
    assert all(largest[exact] == 0 for _, _, largest in found for exact in EXACT)


def _family_curve(family: str, precision: str) -> list[float]:
    """The mean losses of steps on the same rows, which are made of chance: a model can learn them by heart only."""
    engine = build_engine(family_config(family, precision=precision, batch={"micro_sequences": 2}))
    rate, rows = engine.config.optimizer.learning_rate, SyntheticStream(engine.config).batch(0, ROWS, 0, 1)
    results = [engine.train_step(rows, rate, step) for step in range(1, STEPS + 1)]
    return [result.loss_sum / result.token_count for result in results]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_and_bf16_follows_fp32(family: str) -> None:
    half, full = (np.array(run_ranks(1, _family_curve, family, precision)[0]) for precision in ("bf16", "fp32"))
    assert np.isfinite(full).all()
    assert full[-1] < full[0]
    assert np.abs(half - full).max() < 0.1


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-4), ("bf16", 0.1)])
def test_packed_documents_do_not_see_each_other(precision: str, bound: float) -> None:
    leaks, apart = seen(precision=precision)
    assert not leaks
    assert apart <= bound


def _tests_of_the_machine() -> tuple[bool, float, float]:
    flops, right = machine.product(torch.device("cuda"))
    return right, flops, ProductSeconds().take()


def test_a_gpu_s_products_are_right_and_timed() -> None:
    right, flops, seconds = run_ranks(1, _tests_of_the_machine)[0]
    assert right
    assert flops > 1e12
    assert 0 < seconds < 1


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 1e-2)])
@pytest.mark.parametrize("case", ["a tied head, a cap, smoothing, drift", "a bias, a question, drift"])
def test_few_logits_at_a_time_are_worth_what_all_are(case: str, precision: str, tolerance: float) -> None:
    all_at_once, few = (run_ranks(1, judged, *CASES[case], {}, many, precision)[0] for many in (10**6, 10))
    assert few.calls > all_at_once.calls
    assert_like(few, all_at_once, tolerance)


@pytest.mark.parametrize("shape", [(3, 65, 130), (2, 3, 70, 66)], ids=str)
def test_compiled_dropout_drops_the_same_elements(shape: tuple[int, ...]) -> None:
    compare_dropout(shape, torch.device("cuda"))


def test_compiled_kernels_make_the_same_run() -> None:
    compare_kernels()
