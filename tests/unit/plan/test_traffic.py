"""Bytes that the planner counts, against those of operations that the engine issued: it was run with tensors that hold
no data, as one rank of a cluster, and its exchanges were recorded ("counted by a rehearsal", docs/plan.md)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import plan_layout
from pretrain.plan.device import find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import constants
from pretrain.plan.estimate.held import HeldBytes, held_bytes
from pretrain.plan.estimate.seconds import step_seconds
from pretrain.plan.estimate.tensor_traffic import embedding_bytes, head_bytes, tensor_bytes
from pretrain.plan.estimate.traffic import WireBytes, links, wire_bytes
from pretrain.plan.estimate.workload import StepWorkload

MIB, GIB = 2**20, 2**30
EXACT = 0.001
DEEPSPEED = ("parallel.zero_engine=deepspeed", "parallel.tensor=1", "parallel.sequence=false", "batch.ramp=null")
LLAMA = ("llama2/7b", 32, "parallel.tensor=2", "parallel.context=4", "parallel.sequence=true", "batch.sequences=8")
GPT_175B = ("gpt3/175b", 1024, "batch.ramp=null", "batch.sequences=128")
T5_11B = ("t5/11b", 32, "parallel.tensor=8", "batch.sequences=16", "batch.micro_sequences=4")
GPT_13B = (
    "gpt3/13b", 64, *DEEPSPEED, "parallel.zero=3", "parallel.recompute=full", "batch.sequences=64",
    "batch.micro_sequences=1",
)  # fmt: skip
GPT_1_3B = ("gpt3/1.3b", 64, *DEEPSPEED, "parallel.zero=2", "batch.sequences=64", "batch.micro_sequences=1")


def workload(name: str, world: int, *settings: str) -> StepWorkload:
    run = load(RunConfig, name, ["run.dir=x", "data.path=x", *settings])
    choice = LayoutChoice(plan_layout(run, world), run.batch.micro_sequences, run.parallel.recompute)
    return WorkloadBuilder(run, find_device("h100"), 8).build([choice])


def sent(*case: Any) -> WireBytes:
    return wire_bytes(workload(*case))


def held(*case: Any) -> HeldBytes:
    return held_bytes(workload(*case), constants(), overhead=False)


def test_sequence_parallelism_gathers_the_inputs_of_products_again() -> None:
    """Six all-gathers and four reduce-scatters of hidden states for each layer and micro-batch."""
    first, middle, last = sent(*GPT_175B).tensor[0] / MIB
    assert middle == pytest.approx(24_192 + 16_128, rel=EXACT)
    assert first - middle == pytest.approx(1_344 + 672, rel=EXACT), "lookups are summed, and their gradient is gathered"
    assert last - middle == pytest.approx(2 * 672 + 672, rel=EXACT), "the input of the logits, twice, and its gradient"
    # an all-reduce of what was looked up besides, in two micro-batches
    assert sent(*LLAMA).tensor[0, 0] / MIB == pytest.approx(1_560 + 1_032 + 16, rel=EXACT)


def test_context_data_and_pipeline_ranks() -> None:
    llama, gpt = sent(*LLAMA), sent(*GPT_175B)
    assert llama.replicas[0, 0] / MIB == pytest.approx(12_049.7 + 6_024.9, rel=EXACT)
    assert llama.context[0, 0] / MIB == pytest.approx(2_304, rel=EXACT), "attention is recomputed with its exchange"
    assert sent(*LLAMA, "parallel.recompute=none").context[0, 0] / MIB == pytest.approx(1_536, rel=EXACT)
    assert gpt.replicas[0, 1] / MIB == pytest.approx(4_537.7 + 2_268.8, rel=EXACT)
    assert gpt.pipeline[0, 1] / MIB == pytest.approx(192, rel=EXACT)


def test_both_ends_of_a_pipeline_sum_the_gradient_of_a_tied_embedding() -> None:
    assert (sent(*GPT_175B).summed[0] / MIB).tolist() == pytest.approx([294.8, 0, 294.8], rel=EXACT)
    assert sent(*LLAMA).summed.max() == 0
    alone = sent(*GPT_175B[:1], 64, "parallel.pipeline=1", "batch.ramp=null", "batch.sequences=128")
    assert alone.summed.max() == 0


def test_a_decoder_sums_the_gradient_of_the_encoders_states() -> None:
    assert sent(*T5_11B).tensor[0, 0] / MIB == pytest.approx(1_074.6, rel=EXACT)


def test_stage_3_exchanges_gradients_in_fp32_and_gathers_weights_twice_in_a_pipeline_again_for_recomputation() -> None:
    assert sent(*GPT_13B).replicas[0, 0] / MIB == pytest.approx(48_267 + 48_154, rel=0.01)
    assert sent(*GPT_13B, "parallel.recompute=none").replicas[0, 0] == sent(*GPT_13B).replicas[0, 0]
    stages = "parallel.pipeline=2", "batch.sequences=32"
    kept = sent(*GPT_13B, *stages, "parallel.recompute=none").replicas[0, 0]
    assert kept / sent(*GPT_13B, *stages).replicas[0, 0] == pytest.approx((2 + 2 + 4) / (2 + 2 + 2 + 4))


def test_stage_3_gathers_a_tied_embedding_once_more_for_the_logits() -> None:
    small = (
        "gpt3/1.3b",
        2,
        *DEEPSPEED,
        "parallel.zero=3",
        "model.layers=4",
        "batch.sequences=4",
        "batch.micro_sequences=1",
    )
    assert sent(*small).replicas[0, 0] / MIB == pytest.approx(2_551.0, rel=EXACT), "counted with full recomputation"
    assert held(*small).fullest[0] / MIB == pytest.approx(4_623.5, rel=0.02)


def test_stage_2_sums_gradients_on_all_ranks() -> None:
    assert sent(*GPT_1_3B).replicas[0, 0] / MIB == pytest.approx(9_882 + 2_470, rel=EXACT)


def test_building_takes_weights_twice_and_gradients_if_a_step_takes_less() -> None:
    llama, gpt = held(*LLAMA), held(*GPT_175B)
    assert llama.fullest[0] / GIB == pytest.approx(25.1, rel=0.005)
    assert (llama.total - llama.building)[0, 0] / GIB == pytest.approx(23.867, rel=0.03)
    assert gpt.building.max() == 0
    for layout in ("parallel.zero=0", "parallel.zero=3", "parallel.zero=2"):
        engine = "megatron" if layout.endswith("0") else "deepspeed"
        assert held(*GPT_1_3B, layout, f"parallel.zero_engine={engine}").building.max() == 0


def test_deepspeeds_buckets() -> None:
    """Stage 3 has one in fp32 from the start, and a copy of what is exchanged. Stage 2 has buckets in the backward pass
    only, when the logits are gone, which take more here."""
    stage_3, stage_2 = held(*GPT_13B), held(*GPT_1_3B)
    bucket = 4 * 12 * 5120**2
    assert workload(*GPT_13B).step.bucket_bytes[0] == bucket
    assert stage_3.fullest[0] / GIB == pytest.approx(8.269, rel=0.03)
    tied_gradient = 2 * 50304 * 5120
    assert bucket * 5 / 3 < stage_3.buffers[0, 0] - tied_gradient < bucket * 3
    assert stage_2.fullest[0] / GIB == pytest.approx(7.094, rel=0.035), "it has no sums of gradients in one micro-batch"
    work = workload(*GPT_1_3B)
    without = replace(work, step=replace(work.step, bucket_copy_bytes=np.zeros(1)))
    assert stage_2.buffers[0, 0] == held_bytes(without, constants(), overhead=False).buffers[0, 0]
    assert held(*GPT_1_3B, "parallel.recompute=full", "model.vocabulary=1000").buffers[0, 0] > 0


def test_seconds_leave_out_what_a_fit_does_not_need() -> None:
    work = workload(*GPT_175B)
    one, ends = tensor_bytes(work, work.stacks[0]), (embedding_bytes(work), head_bytes(work))
    unit = (one.forward + one.backward) / 10
    assert (one.repeated / unit)[0] == pytest.approx(2), "the inputs of two products"
    assert [(end.forward / unit)[0] for end in ends] == pytest.approx([2, 1])
    assert [(end.backward / unit)[0] for end in ends] == pytest.approx([1, 2])
    c = constants()
    free = type(c)({**c.values, "message_s": 0.0})
    link = links(work, c).tensor[0]
    sent = 16 * 6 * 8 * unit[0]  # micro-batches, layers
    assert step_seconds(work, free).tensor[0] == pytest.approx(c["tensor_exposed"] * sent / link)
