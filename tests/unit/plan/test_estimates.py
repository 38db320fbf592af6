"""Estimates against what is declared, against arithmetic done by hand, and against published measurements."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pretrain.attention.patterns.merged import disjoint
from pretrain.attention.patterns.registry import tiles_of
from pretrain.config.attention import Banded
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.layout.names import parse_layout
from pretrain.model_spec.parameters import num_rank_parameters
from pretrain.plan.device import device_names, find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.compute import head, layers
from pretrain.plan.estimate.constants import constants, find_stack
from pretrain.plan.estimate.held import HeldBytes, held_bytes
from pretrain.plan.estimate.seconds import StepSeconds, step_seconds
from pretrain.plan.estimate.traffic import exchange, links
from pretrain.plan.memory import largest_state
from tests.helpers.saved import counted
from tests.helpers.small_configs import config

H100 = find_device("h100")


def gpt3(name: str, **model: Any) -> RunConfig:
    found = load(RunConfig, f"gpt3/{name}", ["model.vocabulary=50257", "model.attention.pattern=[dense]"])
    return found.model_copy(update={"model": found.model.model_copy(update=model)})


def held(run: RunConfig, layout: str, micro: int = 1, recompute: str = "none") -> HeldBytes:
    work = WorkloadBuilder(run, H100, 8).build([LayoutChoice(parse_layout(layout, zero=0), micro, recompute)])
    return held_bytes(work, constants(), overhead=False)


def seconds(run: RunConfig, *layouts: str, micro: int = 1, recompute: str = "none") -> StepSeconds:
    choices = [LayoutChoice(parse_layout(layout, zero=0), micro, recompute) for layout in layouts]
    return step_seconds(WorkloadBuilder(run, H100, 8).build(choices), constants())


@pytest.mark.parametrize("name", ["gpt3/6.7b", "t5/11b", "bert/large", "gpt2/124m"])
@pytest.mark.parametrize("layout", ["tp2pp4dp2", "pp2dp2+vp2", "tp4dp2"])
def test_stages_hold_the_parameters_that_are_declared(name: str, layout: str) -> None:
    run, laid = load(RunConfig, name, ["model.vocabulary=32000"]), parse_layout(layout, zero=0)
    work = WorkloadBuilder(run, H100, 8).build([LayoutChoice(laid, 1, "none")])
    known = [num_rank_parameters(run.model, laid, stage) for stage in range(laid.pipeline)]
    if not run.model.is_encoder_decoder and laid.pipeline > 3:
        assert known[1] == known[2]
        known = [known[0], known[1], known[-1]]
    assert work.parameters[0, : len(known)].tolist() == known
    assert work.stages.count[0].sum() == laid.pipeline


@pytest.mark.parametrize("layout", ["tp2pp4dp2", "pp2dp2", "tp4dp2"])
def test_every_stage_holds_layers_that_are_one(layout: str) -> None:
    run, laid = load(RunConfig, "albert/large"), parse_layout(layout, zero=0)
    work = WorkloadBuilder(run, H100, 8).build([LayoutChoice(laid, 1, "none")])
    known = [num_rank_parameters(run.model, laid, stage) for stage in range(laid.pipeline)]
    held = work.parameters[0, work.stages.count[0] > 0].tolist()
    assert held == ([known[0], known[1], known[-1]] if len(known) > 3 else known)


@pytest.mark.parametrize("layout", ["dp8+zero1", "tp2pp2dp2+sp+zero1", "dp8+zero2", "dp8+zero3", "tp8"])
def test_a_state_is_as_large_as_a_run_says_at_its_start(layout: str) -> None:
    run = gpt3("1.3b")
    state, found = largest_state(run, parse_layout(layout, zero=0)), held(run, layout)
    stage = int((found.weights + found.gradients + found.optimizer)[0].argmax())
    assert found.weights[0, stage] == pytest.approx(state.weights)
    assert found.gradients[0, stage] == pytest.approx(state.gradients)
    assert found.optimizer[0, stage] == pytest.approx(state.optimizer)


def test_activations_of_a_dense_layer_are_sixteen_times_its_input() -> None:
    run = gpt3("1.3b")
    one = 2048 * run.model.hidden * 2  # bytes of a layer's input in bf16
    assert held(run, "dp1").activations[0, 0] == pytest.approx(16 * 24 * one, rel=0.01)
    assert held(run, "dp1", micro=4).activations[0, 0] == pytest.approx(4 * 16 * 24 * one, rel=0.01)
    assert held(run, "dp1", recompute="full").activations[0, 0] == 24 * one
    # of each rank's 12 layers, two micro-batches on the first of two stages and one on the last
    assert held(run, "pp2").activations[0, :2] == pytest.approx([16 * 24 * one, 16 * 12 * one], rel=0.01)
    # norms see whole hidden states without sequence parallelism
    assert held(run, "tp8").activations[0, 0] == pytest.approx((4 + 12 / 8) * 24 * one, rel=0.01)
    assert held(run, "tp8+sp").activations[0, 0] == pytest.approx(16 / 8 * 24 * one, rel=0.01)


@pytest.mark.parametrize("window", [64, 256])
def test_windows_of_a_band_are_counted_as_attention_elsewhere_than_on_a_cpu_keeps_them(window: int) -> None:
    pattern, length, heads, width = Banded(window=window), 2048, 8, 64
    q, k, v = (torch.randn(length, heads, width, requires_grad=True) for _ in range(3))
    with counted([q, k, v]) as saved:
        heads_first = (x.transpose(0, 1)[None] for x in (q, k, v))
        _out = disjoint(*heads_first, tiles_of(pattern, length, True), scale=1.0, sdpa=F.scaled_dot_product_attention)
        of_one = saved.now / q.untyped_storage().nbytes()
    assert of_one == pytest.approx(4 + 2 * pattern.key_copies, rel=0.05), (
        "queries, keys, values and what is made of them"
    )


def test_logits_are_held_half_a_gibibyte_at_a_time_but_in_fp16() -> None:
    def at_most(bytes_by_part: HeldBytes) -> float:
        return float((bytes_by_part.working + bytes_by_part.buffers)[0, 0])

    run = gpt3("1.3b")
    words = run.model.padded_vocab_size
    at_once = 2**29 // (4 * words)  # positions: 1.3 sequences
    kept, all_kept = held(run, "dp8", 1, "full"), held(run, "dp8", 4, "full")
    # In bf16, in fp32, and their probabilities.
    norm, logits = 2 * 2048 * run.model.hidden * 2, (2 + 4 + 4) * words
    assert at_most(kept) == pytest.approx(norm + logits * 2048), "all of one sequence"
    sums = 4 * words * run.model.hidden + 4 * 2048 * run.model.hidden * 2
    assert all_kept.working[0, 0] == pytest.approx(4 * norm + logits * at_once + sums), "of four a part at a time"
    halves = held(run.model_copy(update={"precision": "fp16"}), "dp8", 4, "full")
    assert at_most(halves) == pytest.approx(4 * (norm + logits * 2048))


def test_a_larger_model_longer_sequences_and_fewer_devices_take_longer() -> None:
    run = gpt3("6.7b")
    few, many = seconds(run, "tp2dp4+zero1", "tp2dp16+zero1").total
    assert 3.5 < few / many < 4
    assert seconds(gpt3("6.7b", layers=64), "tp2dp4+zero1").compute == pytest.approx(
        2 * seconds(run, "tp2dp4+zero1").compute, rel=1e-6
    )
    assert seconds(run, "tp2dp4+zero1", recompute="full").recompute[0] > 0.3 * seconds(run, "tp2dp4+zero1").compute[0]


def test_interleaving_shortens_the_bubble_and_sends_more() -> None:
    plain, interleaved = (seconds(gpt3("6.7b"), f"pp8dp2{vp}+zero1") for vp in ("", "+vp4"))
    assert interleaved.bubble[0] == pytest.approx(plain.bubble[0] / 4, rel=0.2)
    assert interleaved.pipeline[0] == pytest.approx(4 * plain.pipeline[0])


def test_a_query_that_sees_fewer_keys_takes_less() -> None:
    dense = load(RunConfig, "gpt2/124m", ["model.vocabulary=50257", "model.sequence_length=16384"])
    narrow = load(
        RunConfig, "gpt2/124m",
        ["model.vocabulary=50257", "model.sequence_length=16384", "model.attention.pattern=[banded]"],
    )  # fmt: skip
    assert seconds(narrow, "dp8").compute[0] < 0.7 * seconds(dense, "dp8").compute[0]


def test_messages_between_machines_are_slower_than_inside() -> None:
    run = gpt3("6.7b")
    inside = seconds(run, "dp8+zero1").replicas[0]
    wide = WorkloadBuilder(run, H100, 8).build([LayoutChoice(parse_layout("dp8+zero1", zero=0), 1, "none")])
    narrow = replace(wide, device=replace(wide.device, per_node=np.ones(1)))
    assert step_seconds(narrow, constants()).replicas[0] > inside


def test_a_ring_of_context_ranks_goes_around_tensor_ranks() -> None:
    """Four tensor ranks fill half of a machine of 8, so a ring of four context ranks leaves it, with two in it."""
    c, device = constants(), H100
    work = WorkloadBuilder(gpt3("6.7b"), device, 8).build([LayoutChoice(parse_layout("tp4cp4", zero=0), 1, "none")])
    inside = work.device.link_bytes_per_s[0] * c.link_share
    outside = work.device.network_bytes_per_s[0] * c.network_share
    at = links(work, c)
    assert at.tensor[0] == inside
    assert at.context[0] == min(inside, 2 * outside)
    assert at.context[0] < inside
    alone = links(
        WorkloadBuilder(gpt3("6.7b"), device, 8).build([LayoutChoice(parse_layout("cp8", zero=0), 1, "none")]), c
    )
    assert alone.context[0] == inside


def test_bytes_between_copies_are_those_of_each_zero_stage() -> None:
    """Gradients are sent in fp32: to their owners, or twice around where all get them (also in DeepSpeed's stage 2).
    Weights come back in 16 bits; of stage 3 twice, and that for every micro-batch, and a tied embedding thrice."""
    layouts = ["dp8", "dp8+zero1", "dp8+zero2", "dp8+zero3"]
    work = WorkloadBuilder(gpt3("1.3b"), H100, 8).build(
        [LayoutChoice(parse_layout(name, zero=0), 1, "none") for name in layouts]
    )
    at = links(work, constants())
    step, micro = exchange(work, at)
    once = (7 / 8 * work.parameters[:, 0] / at.replicas).tolist()
    assert (work.step.exchanged_gradient_bytes.tolist(), work.step.activation_bytes.tolist()) == ([4] * 4, [2] * 4)
    assert step[:, 0].tolist() == pytest.approx([8 * once[0], 6 * once[1], 2 * once[2], 0])
    table = 7 / 8 * work.tied_parameters[3, 0] / at.replicas[3]
    assert table > 0
    assert micro[:, 0].tolist() == pytest.approx([0, 0, 8 * once[2], 8 * once[3] + 2 * table])


def test_hardware_that_comes_with_the_package() -> None:
    assert {"a100-40", "a100-80", "h100", "h200", "b200", "v100"} <= set(device_names())
    for name in device_names():
        device = find_device(name)
        assert device.source
        assert device.peak("fp32")
        assert device.fp8_flops is None or device.fp8_flops > (device.bf16_flops or 0)


def test_unknown_names_are_answered_with_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="no hardware is called 'h10'; known are a100-40, a100-80, b200, h100, h200, l40s, v100: name"
    ):
        find_device("h10")
    with pytest.raises(ConfigError, match="no steps of software called 'nanotrn' were measured: did you mean nanotron"):
        find_stack("nanotrn")


@pytest.mark.parametrize(
    ("precision", "device", "instead"), [("bf16", "v100", "fp16"), ("fp8", "v100", "fp16"), ("fp8", "a100-80", "bf16")]
)
def test_precision_that_a_device_has_not(precision: str, device: str, instead: str) -> None:
    run = gpt3("1.3b").model_copy(update={"precision": precision})
    with pytest.raises(
        ConfigError, match=f"hardware of generation .* does not support precision={precision}: use {instead}"
    ):
        WorkloadBuilder(run, find_device(device), 8).build([LayoutChoice(parse_layout("dp8", zero=0), 1, "none")])


def test_products_in_8_bits_make_layers_faster_and_logits_as_fast() -> None:
    run = gpt3("6.7b")
    choices = [LayoutChoice(parse_layout("dp8", zero=0), 4, "none")]
    found = {}
    for precision, kernels in (("bf16", "plain"), ("fp8", "plain"), ("fp8", "compiled")):
        chosen = run.model_copy(update={"precision": precision, "run": run.run.model_copy(update={"kernels": kernels})})
        work = WorkloadBuilder(chosen, H100, 8).build(choices)
        whole = layers(work, constants(), work.stacks[0])
        found[precision, kernels] = whole.forward[0, 0] + whole.backward[0, 0], head(work, constants())[0, 0]
    of_layer, of_head = zip(*found.values(), strict=True)
    assert 0.5 * of_layer[0] < of_layer[2] < of_layer[1] < 0.9 * of_layer[0]
    assert len(set(of_head)) == 1


def test_every_constant_says_what_it_means_and_lies_within_its_bounds() -> None:
    from pretrain.config.load import read
    from pretrain.plan.estimate.constants import CONSTANTS

    for name, entry in read(CONSTANTS).items():
        assert entry["meaning"], name
        low, high = entry.get("between", [0, np.inf])
        assert low * 0.999 <= entry["value"] <= high * 1.001, name


def test_layouts_are_judged_together_as_each_alone() -> None:
    run, names = gpt3("6.7b"), ["tp2dp4+zero1", "pp4dp2+zero1", "tp2pp2dp2+sp+vp2+zero1", "dp8+zero3"]
    together = seconds(run, *names).total
    assert together.tolist() == pytest.approx([seconds(run, name).total[0] for name in names])
    small = config(model={"vocabulary": 1000})
    assert isinstance(held(small, "dp1").fullest[0], float)
    assert Layout(world=8).data == 8
