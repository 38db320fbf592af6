"""A rehearsal makes steps of the engine as single ranks on a `cuda` device that is not there: it counts what the
planner expects. `test_device_faults.py` plants faults that only a GPU would show."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.plan.device import find_device
from pretrain.rehearse.patches import deepspeed
from pretrain.rehearse.patches.install import install_patches
from pretrain.rehearse.planned import PlannedRank
from pretrain.rehearse.rank import rehearse_rank
from pretrain.rehearse.rank_rehearsal import STATE, RankRehearsal
from pretrain.rehearse.recorder import Recorder
from pretrain.rehearse.report import as_json, lines
from pretrain.rehearse.run import Rehearsal, rehearse
from tests.helpers.breadth import slow

H100 = find_device("h100")
STEP = "tolist at pretrain/engine/megatron/engine.py"
FACTORS = "tolist at pretrain/engine/optimizer/totals.py"  # Adafactor reads sums of its factors


def config(name: str, *overrides: str) -> RunConfig:
    """A config of the package in bf16, with a small vocabulary."""
    return load(RunConfig, name, ["run.dir=unused", "precision=bf16", "model.vocabulary=1000", *overrides])


@cache
def rehearsed(
    name: str, *overrides: str, ranks: tuple[int | str, ...] = ("first", "last"), gpus: int = 8
) -> Rehearsal:  # fmt: skip
    """A rehearsal without problems, made once for all tests."""
    found = rehearse(config(name, *overrides), gpus, ranks=ranks, device=H100, per_node=8)
    assert found.problems == []
    return found


def assert_agrees(rank: RankRehearsal, planned: PlannedRank, peak: float = 0.05, flops: float = 0.01) -> None:
    """Parameters and the training state are those of the planner, ranks exchange as many bytes, and the peak and the
    operations are within `peak` and `flops` of the planner's. The host waits for the step's results alone, and every
    operator has a kernel."""
    assert rank.parameters == planned.parameters
    for category in STATE:
        # Buffers are padded, so that ranks have equal shares.
        assert rank.state_bytes[category] == pytest.approx(planned.held[category], rel=0.02, abs=8192)
    sent = rank.sent_bytes
    for group, expected in planned.sent_bytes.items():
        assert sent.get(group, 0.0) == pytest.approx(expected, rel=0.01), group
    assert planned.peak_bytes == pytest.approx(rank.peak_bytes, rel=peak)
    assert planned.flops == pytest.approx(sum(rank.flops.values()), rel=flops)
    assert rank.without_kernel == {}
    assert all(cause.startswith((STEP, FACTORS)) and count == 1 for cause, count in rank.waits.items())
    assert rank.left_bytes == 0


PACKED = ("objective.packing=best_fit", "model.attention.window=32", "parallel.context=2")
DENSE = ("model.attention={pattern: [dense]}",)
T5 = (
    *("model.layers=8", "model.encoder_layers=8", "batch.sequences=32", "parallel.pipeline=1"),
    "optimizer.name=adamw",
)
LLAMA = (
    *("model.layers=4", "model.hidden=512", "model.heads=8", "model.ffn=1024", "model.sequence_length=512"),
    *("parallel.tensor=2", "parallel.context=2", "parallel.sequence=true", "parallel.recompute=selective"),
    *("batch.sequences=8", "batch.micro_sequences=2"),
)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("debug/gpt", ()),
        slow(("debug/bert", ("model.layers=16",))),  # as `test_shipped.py`, in bf16
        slow(("debug/t5", T5)),
        slow(("llama2/7b", LLAMA)),
    ],
    ids=["gpt", "bert", "t5", "llama"],
)
def test_ranks_hold_and_exchange_what_the_planner_expects(name: str, overrides: tuple[str, ...]) -> None:
    found = rehearsed(name, *overrides)
    for rank, planned in zip(found.ranks, found.planned, strict=True):
        # The planner counts the keys that queries of a band see; its tiles compute up to twice as many.
        assert_agrees(rank, planned, flops=0.15 if name == "debug/gpt" else 0.01)


@pytest.mark.slow
def test_logits_of_two_chunks_of_positions_never_live_at_once() -> None:
    """The planner counts those of one."""
    found = rehearsed("debug/long", *DENSE, "model.vocabulary=32768", ranks=(0,), gpus=1)  # two equal chunks
    (rank,), (planned,) = found.ranks, found.planned
    (count,) = (one.count for one in rank.largest if one.operator == "mm" and one.shape[-1] == 32_768)
    assert count == 1
    assert_agrees(rank, planned)


ALONE = (
    *("parallel.tensor=1", "parallel.pipeline=1", "batch.sequences=64", "batch.micro_sequences=64"),
    *("model.vocabulary=50257", "model.layers=1"),
)


@pytest.mark.parametrize(
    "overrides",
    [
        (*ALONE, "objective.z_loss=1e-4"),
        slow(((*ALONE, "objective.label_smoothing=0.1", "precision=fp32"),)),
        slow(((*ALONE, "objective.z_loss=1e-4", "parallel.tensor=2"),)),
        slow(((*ALONE, "model.hidden=2048", "model.vocabulary=262144"),)),
    ],
    ids=["z_loss", "smoothing", "tensor", "wide"],
)
def test_the_loss_of_many_chunks_is_planned(overrides: tuple[str, ...]) -> None:
    """Gradients of its terms; and the sum over chunks of the output layer's gradient, when it is handed over."""
    tensor = 2 if "parallel.tensor=2" in overrides else 1
    found = rehearsed("debug/gpt", *overrides, ranks=(0,), gpus=tensor)
    assert found.planned[0].peak_bytes == pytest.approx(found.ranks[0].peak_bytes, rel=0.03)


@pytest.mark.parametrize(
    "overrides",
    [
        slow((("parallel.recompute=full",),)),
        slow((("parallel.recompute=selective",),)),
        slow((("model.dropout=0.1", "model.attention_dropout=0.1"),)),
        slow((("model.positions=alibi",),)),
        ("parallel.pipeline=2", "parallel.virtual=2"),
    ],
    ids=lambda overrides: overrides[0],
)
def test_operations_are_those_of_the_planner(overrides: tuple[str, ...]) -> None:
    """Products, attention and what is recomputed, each stage's own."""
    ranks = ("first", "last") if "parallel.pipeline=2" in overrides else (0,)
    found = rehearsed("debug/gpt", *DENSE, "batch.sequences=32", "parallel.pipeline=1", *overrides, ranks=ranks)
    for rank, planned in zip(found.ranks, found.planned, strict=True):
        assert planned.flops == pytest.approx(sum(rank.flops.values()), rel=0.01)


@pytest.mark.parametrize(
    "overrides",
    [("precision=fp32",), ("precision=fp16",), ("precision=fp8",), ("objective.packing=best_fit",)],
    ids=lambda overrides: overrides[0],
)
@pytest.mark.slow
def test_precisions_and_packed_rows_make_their_step(overrides: tuple[str, ...]) -> None:
    (rank,) = rehearsed("debug/gpt", *overrides, ranks=(0,)).ranks
    assert rank.without_kernel == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["albert", "bart", "roberta", "roformer", "sparse-transformer", "t5", "transformer"])
def test_every_family_makes_its_step(name: str) -> None:
    found = rehearsed(f"debug/{name}", "batch.sequences=512" if name == "transformer" else "batch.sequences=64")
    for rank, planned in zip(found.ranks, found.planned, strict=True):
        assert rank.parameters == planned.parameters
        assert rank.without_kernel == {}
        assert all(cause.startswith((STEP, FACTORS)) for cause in rank.waits)


@pytest.mark.slow
def test_padded_rows_have_score_masks_of_their_own_until_their_backward_pass() -> None:
    """In every micro-batch in flight: two on the first stage, one on the last."""
    longer = "model.sequence_length=512", "batch.sequences=32"
    found = rehearsed("debug/bert", "model.positions=alibi", *longer)
    for rank, planned in zip(found.ranks, found.planned, strict=True):
        assert planned.peak_bytes == pytest.approx(rank.peak_bytes, rel=0.03)


def test_stages_send_what_the_planner_expects() -> None:
    found = rehearsed("debug/gpt", "parallel.pipeline=4", "parallel.tensor=1", "batch.sequences=32", ranks=("middle",))
    (rank,), (planned,) = found.ranks, found.planned
    assert rank.sent_bytes["pipeline"] == planned.sent_bytes["pipeline"]


@pytest.mark.slow
def test_large_tensors_are_named_with_the_module_and_line_that_made_them() -> None:
    """In the backward pass: the first stage's are its embedding's, if the vocabulary is large."""
    (rank,) = rehearsed("debug/gpt", "model.vocabulary=25000", ranks=(0,)).ranks
    named = {(one.category, one.module, one.operator) for one in rank.largest}
    assert ("backward", "embedding.word_embeddings", "embedding_dense_backward") in named
    assert all(one.line.startswith(("pretrain/", "megatron/")) for one in rank.largest)


@pytest.mark.slow
def test_weights_are_built_in_their_precision_and_their_first_copies_returned() -> None:
    """Otherwise the allocator reserves 34% more than lives while this rank is built, or 10% more in its steps."""
    (rank,) = rehearsed("gpt3/1.3b", "model.layers=4", ranks=(3,)).ranks
    assert rank.build_reserved_bytes < 1.15 * rank.build_peak_bytes
    assert rank.reserved_bytes < 1.06 * rank.peak_bytes


def test_banded_attention_never_waits() -> None:
    """The sequence is longer than the window, so that tables of keys are copied to the device."""
    (rank,) = rehearsed("debug/gpt", "model.attention.window=32", ranks=(0,)).ranks
    for waits in (rank.first_waits, rank.waits):
        assert [cause.partition(":")[0] for cause in waits] == [STEP]


SPARSE_ENCODER = ("model.attention={pattern: [banded, dense], window: 32}", "model.sequence_length=128")


@pytest.mark.parametrize(
    ("name", "overrides", "ranks"),
    [
        slow(("debug/gpt", PACKED, (0, 1, 2, 3))),
        ("debug/bert", SPARSE_ENCODER, (0, 2)),
    ],
    ids=["packed decoder", "padded encoder with a sparse pattern"],
)
def test_segments_of_rows_are_known_without_waiting_for_the_device(
    name: str, overrides: tuple[str, ...], ranks: tuple[int, ...]
) -> None:
    """On every stage and context rank."""
    layout = ("parallel.tensor=1", "parallel.pipeline=2", "batch.sequences=4", "batch.micro_sequences=2")
    for rank in rehearsed(name, *overrides, *layout, ranks=ranks, gpus=4).ranks:
        assert [(cause.partition(":")[0], count) for cause, count in rank.waits.items()] == [(STEP, 1)]


@pytest.mark.parametrize("stage", [slow(1), 2, slow(3)])
def test_deepspeed_makes_its_step(stage: int) -> None:
    zero = ("parallel.zero_engine=deepspeed", f"parallel.zero={stage}")
    found = rehearsed("debug/gpt", *zero, "parallel.pipeline=1", "batch.sequences=16", ranks=(0,))
    (rank,), (planned,) = found.ranks, found.planned
    assert rank.parameters == planned.parameters
    assert rank.state_bytes["optimizer"] == pytest.approx(planned.held["optimizer"], rel=0.02)
    if stage < 3:  # the shapes of weights that it keeps on the meta device take no memory
        beside_state = sum(size for category, size in rank.state_bytes.items() if category not in STATE)
        assert beside_state < 0.01 * rank.state_bytes["weights"]


def _figures(few_ranks: int) -> tuple[Any, ...]:
    """What is counted of a rank of 24, of which six share the state; they cut gradients if they are so few."""
    deepspeed._FEW_RANKS = few_ranks
    sharded = ("parallel.zero=3", "parallel.zero_engine=deepspeed", "batch.sequences=48", "batch.micro_sequences=1")
    run = config("debug/gpt", *sharded)
    found = rehearse_rank(run, plan_layout(run, 24), 23, H100)
    assert found.problem is None
    return found.peak_bytes, found.reserved_bytes, found.operators, found.exchanges, found.waits, found.left_bytes


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_gradients_that_are_joined_without_being_cut_change_no_figure() -> None:
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(2, context, max_tasks_per_child=1) as pool:
        cut, joined = pool.map(_figures, (6, 5))
    assert cut == joined


def _moved() -> tuple[list[bool], list[bool], list[int]]:
    """Whether tensors that are moved to where they are, and others, are the same as before, and bytes that live after
    each is copied. In a process of its own."""
    recorder = Recorder(2**30)
    install_patches(config("debug/gpt"), H100, recorder)
    with FakeTensorMode(allow_non_fake_inputs=True), recorder:
        x, flags = torch.zeros(1024, device="cuda"), {"non_blocking": True}
        stays = [x.to("cuda"), x.to(torch.device("cuda", 0), **flags), x.to(0), x.to(x), x.to("cuda", torch.float32)]
        stays += [x.to(device="cuda", dtype=torch.float32), x.to(torch.float32), x.cuda()]
        kept, live = [y is x for y in stays], [recorder.memory.live_bytes]
        others = [x.to("cuda", copy=True), x.to("cuda", torch.bfloat16), x.to(torch.zeros(1, device="cuda").half())]
        live.append(recorder.memory.live_bytes)
        others += [torch.zeros(1024).to("cuda"), x.to("cpu")]
        live.append(recorder.memory.live_bytes)
        assert [y.device.type for y in others] == ["cuda"] * 4 + ["cpu"]
        return kept, [y is x for y in others], live


def test_a_tensor_is_not_copied_to_where_it_is() -> None:
    """ZeRO 3 moves gathered weights to their device. On a GPU, where they already are, that makes no copy."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, context) as pool:
        kept, copied, live = pool.submit(_moved).result()
    assert all(kept)
    assert not any(copied)
    assert live == [4096, 4096 + 4096 + 2048 + 2048, 4096 + 4096 + 2048 + 2048 + 4096]


def test_ranks_that_do_not_fit_or_are_not_there_are_named() -> None:
    small = H100.model_copy(update={"memory_gib": 0.001})
    found = rehearse(config("debug/gpt"), 8, ranks=(0,), device=small, per_node=8)
    assert found.problems[0].startswith("rank 0 does not fit: it needs ")
    assert found.problems[1:] == ["no layout of as many devices fits: use more devices, or a smaller model"]
    with pytest.raises(ConfigError, match=r"--ranks 8: the run has ranks 0 to 7"):
        rehearse(config("debug/gpt"), 8, ranks=[8], device=H100, per_node=8)


def test_the_report_names_what_it_counted_and_what_not() -> None:
    found = rehearsed("debug/gpt", ranks=(0,))
    text = "\n".join(lines(found, "debug/gpt", "h100"))
    assert "tp2pp2dp2+zero1" in text
    assert "not measured: workspaces" in text
    assert "bfloat16, made in forward of decoder.layers.*.mlp (pretrain/models/" in text
    assert "reserved by the allocator: " in text
    (rank,) = found.ranks
    assert rank.reserved_bytes >= rank.peak_bytes
    assert rank.build_reserved_bytes >= rank.build_peak_bytes
    assert rank.needed_bytes == max(rank.build_reserved_bytes, rank.reserved_bytes) + rank.unmeasured_bytes
    assert rank.allocator_retries == 0
    report = as_json(found, "h100")
    assert report["ranks"][0]["plan"]["parameters"] == report["ranks"][0]["parameters"]
    figures = {one["name"]: one for one in report["ranks"][0]["against_plan"]}
    assert figures["weights"]["ratio"] == pytest.approx(1, rel=0.02)
    assert figures["sent, data"]["ratio"] == pytest.approx(1, rel=0.01)
    assert figures["sent, data"]["counted"] == pytest.approx(found.ranks[0].sent_bytes["data"] / 2**20)
    (rank,), (planned,) = found.ranks, found.planned
    assert figures["peak of a step"]["ratio"] == pytest.approx(rank.peak_bytes / planned.peak_bytes)
    table = "\n".join(lines(found, "debug/gpt", "h100", against_plan=True))
    assert "rank 0 against plan" in table
    assert "rank 0 against plan" not in text
    assert report["problems"] == []
    unplanned = replace(found, planned=())
    assert as_json(unplanned, "h100")["ranks"][0]["plan"] is None
    without_plan = lines(unplanned, "debug/gpt", "h100")
    (sends,) = (line for line in without_plan if "sends in a step" in line)
    assert all(group in sends for group, size in found.ranks[0].sent_bytes.items() if size > 2**20)
    assert max(found.ranks[0].sent_bytes.values()) > 2**20
    assert not any("plan:" in line or "(plan " in line for line in without_plan)


@pytest.mark.parametrize(
    ("name", "overrides", "beginnings"),
    [
        ("debug/gpt", (), []),
        ("debug/gpt", ("run.kernels=compiled",), ["run.kernels=compiled is counted without fusion, since "]),
        slow(("debug/sparse-transformer", ("batch.sequences=64",), ["flex_attention is counted as flash attention "])),
    ],
    ids=["plain", "compiled", "flex"],
)
def test_what_is_counted_as_something_else_is_named(
    name: str, overrides: tuple[str, ...], beginnings: list[str]
) -> None:
    found = rehearsed(name, *overrides, ranks=(0,))
    sentences = as_json(found, "h100")["approximations"]
    assert len(sentences) == len(beginnings)
    for sentence, beginning in zip(sentences, beginnings, strict=True):
        assert sentence.startswith(beginning)
        assert sentence in lines(found, name, "h100")
    assert "addmm" in found.ranks[0].flops, "the product that gives a weight's gradient accumulates it on a GPU"


@pytest.mark.slow
def test_gpt3_175b_on_1024_ranks() -> None:
    found = rehearse(load(RunConfig, "gpt3/175b", ["run.dir=unused"]), 1024, ranks=["first", "middle", "last"],
                     device=H100, per_node=8)  # fmt: skip
    assert found.problems == []
    for rank, planned in zip(found.ranks, found.planned, strict=True):
        assert_agrees(rank, planned, peak=0.03)
        assert rank.host_bytes < 2**30
