"""Plans of mixtures of experts: what a step computes, how long it takes, and what the report says. What it holds and
sends is compared with rehearsals (tests/unit/rehearse/test_experts.py, test_shipped.py)."""

import json

import numpy as np
import pytest

from pretrain.__main__ import main
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.plan.device import find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import constants, find_stack
from pretrain.plan.estimate.flops import stage_flops
from pretrain.plan.estimate.held import held_bytes
from pretrain.plan.estimate.seconds import StepSeconds, step_seconds
from pretrain.plan.estimate.traffic import wire_bytes
from pretrain.plan.estimate.workload import StepWorkload
from pretrain.plan.search import every_choice

SHAPE = ("model.vocabulary=2000", "model.sequence_length=1024", "model.qk_norm=false", "precision=bf16")


def _workload(experts: str, *overrides: str, gpus: int = 1) -> StepWorkload:
    settings = [f"model.experts={experts}", *SHAPE, "batch.sequences=64", "batch.micro_sequences=1", *overrides]
    run = load(RunConfig, "debug/experts", ["run.dir=x", "data.path=x", *settings])
    choice = LayoutChoice(plan_layout(run, gpus), run.batch.micro_sequences, run.parallel.recompute)
    return WorkloadBuilder(run, find_device("h100"), 8).build([choice])


def _seconds(experts: str, *overrides: str) -> StepSeconds:
    return step_seconds(_workload(experts, *overrides), constants())


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_experts_that_all_tokens_pass_through_compute_as_much_as_one_layer_of_their_size(recompute: str) -> None:
    mixed = "{count: 4, top_k: 4, ffn: 88, dense_layers: 1}"
    one, dense = (_workload(experts, f"parallel.recompute={recompute}") for experts in (mixed, "null"))
    passes = 4 if recompute == "full" else 3
    of_routers = 64 * 1024 * 3 * passes * 2 * 128 * 4
    assert (stage_flops(one) - stage_flops(dense)).sum() == pytest.approx(of_routers)
    assert (one.parameters - dense.parameters).sum() == 3 * 128 * 4


def test_layers_before_those_with_experts_are_on_the_first_stage() -> None:
    mixed = _workload("{count: 8, top_k: 2, ffn: 128, dense_layers: 2}", "parallel.pipeline=2", gpus=2)
    before, behind = mixed.stacks
    assert [stack.layers[0].tolist() for stack in (before, behind)] == [[2, 0], [0, 2]]
    assert (before.ffn[0], behind.ffn[0], behind.active_ffn[0]) == (352, 0, 256)
    assert mixed.length[0] == 1024, "states travel once"


def test_other_experts_cost_their_weights_alone_which_larger_micro_batches_share() -> None:
    """They are read by each product, and their gradient is added up in each micro-batch."""
    few, many = "{count: 8, top_k: 2, ffn: 2048, dense_layers: 1}", "{count: 64, top_k: 2, ffn: 2048, dense_layers: 1}"
    wide = ("model.hidden=2048",)
    assert stage_flops(_workload(many, *wide)).sum() == pytest.approx(
        stage_flops(_workload(few, *wide)).sum(), rel=0.01
    )

    def slower(micro: int) -> float:
        taken = [_seconds(experts, *wide, f"batch.micro_sequences={micro}").compute for experts in (many, few)]
        return float((taken[0] / taken[1])[0])

    assert slower(1) > 1.5
    assert 1 < slower(32) < 1.15


def test_fp8_is_faster_for_wide_experts_and_slower_for_many_narrow_ones() -> None:
    """Each expert has products of its own, and what is launched for them takes as long for narrow ones."""

    def slower(experts: str) -> float:
        settings = "model.hidden=4096", "batch.micro_sequences=32"
        in_fp8, in_bf16 = (_seconds(experts, *settings, f"precision={name}").compute[0] for name in ("fp8", "bf16"))
        return float(in_fp8 / in_bf16)

    assert 0.7 < slower("{count: 8, top_k: 2, ffn: 14336, dense_layers: 1}") < 0.95
    assert slower("{count: 128, top_k: 2, ffn: 256, dense_layers: 1}") > 1.5


SHARED = "{count: 8, top_k: 2, ffn: 128, dense_layers: 1}"
EXPERTS = 3 * 8 * 3 * 128 * 128
"""parameters of all experts of the three layers"""


def _share(expert: int, *overrides: str, gpus: int = 8) -> StepWorkload:
    return _workload(SHARED, f"parallel.expert={expert}", *overrides, gpus=gpus)


@pytest.mark.parametrize("zero", ["megatron parallel.zero=0", "megatron", "deepspeed parallel.zero=2"])
def test_ranks_that_share_experts_hold_a_part_of_them_and_as_many_moments(zero: str) -> None:
    settings = f"parallel.zero_engine={zero}".split()
    alone, shared = (held_bytes(_share(expert, *settings), constants(), overhead=False) for expert in (1, 4))
    fewer = EXPERTS * 3 / 4
    assert (alone.weights - shared.weights).sum() == pytest.approx(2 * fewer)
    shards = len(settings) == 1 or settings[1].endswith("2")
    assert (alone.gradients - shared.gradients).sum() == pytest.approx(0 if "deepspeed" in zero else 4 * fewer)
    assert (alone.optimizer - shared.optimizer).sum() == pytest.approx(0 if shards else 12 * fewer)


@pytest.mark.parametrize(("recompute", "times"), [("none", 4), ("full", 6)])
def test_rows_of_tokens_travel_there_and_back(recompute: str, times: int) -> None:
    """Each token sends 2 x 128 values of 2 bytes in each of three layers and eight micro-batches of 1,024 tokens, of
    which each rank keeps a quarter; before that, int64 counts of eight experts."""
    work = _share(4, f"parallel.recompute={recompute}")
    of_rows, of_counts = 1024 * 2 * 128 * 2, 8 * 8
    expected = 8 * 3 * 0.75 * (times * of_rows + (times // 2 - 1) * of_counts)
    assert wire_bytes(work).expert.sum() == pytest.approx(expected)
    assert wire_bytes(_share(1)).expert.sum() == 0


UNSPLIT = ("parallel.tensor=2", "parallel.sequence=true", "parallel.expert_tensor=1")
SPLIT = UNSPLIT[:2]


def test_tensor_ranks_that_split_no_expert_hold_and_compute_as_much_and_send_less() -> None:
    """Four expert ranks of which two are tensor ranks, or two whose experts tensor ranks split: with the latter, each
    tensor rank sends the rows of all tokens, and gathers and sums these tokens."""
    split, unsplit = _share(2, *SPLIT), _share(4, *UNSPLIT)
    assert (unsplit.parameters == split.parameters).all()
    assert (stage_flops(unsplit) == stage_flops(split)).all()
    assert wire_bytes(unsplit).replicas.sum() == pytest.approx(wire_bytes(split).replicas.sum())
    of_rows, of_counts = 1024 / 2 * 2 * 128 * 2, 8 * 8
    assert wire_bytes(unsplit).expert.sum() == pytest.approx(16 * 3 * 0.75 * (4 * of_rows + of_counts))
    of_hidden, of_routes = 1024 * 128 * 2 / 2, 1024 * 2 * 4 / 2
    less = wire_bytes(split).tensor.sum() - wire_bytes(unsplit).tensor.sum()
    assert less == pytest.approx(16 * 3 * (4 * of_hidden + 4 * of_routes))


def test_tensor_ranks_that_hold_all_experts_share_their_gradients_and_moments() -> None:
    """Each of eight ranks has all experts; a rank of two tensor ranks that split them has half."""
    split, alone = _share(1, *SPLIT), _share(1, *UNSPLIT)
    assert (alone.parameters - split.parameters).sum() == EXPERTS / 2
    held, held_alone = (held_bytes(work, constants(), overhead=False) for work in (split, alone))
    assert held_alone.optimizer.sum() == pytest.approx(held.optimizer.sum())
    more = wire_bytes(alone).replicas.sum() - wire_bytes(split).replicas.sum()
    assert more == pytest.approx(6 * EXPERTS * (7 / 8 - 3 / 4 / 2))


def test_gradients_of_experts_are_exchanged_by_those_that_hold_the_same() -> None:
    """Gradients in fp32 and weights: of an expert's between two of eight ranks."""
    alone, shared = (wire_bytes(_share(expert)).replicas.sum() for expert in (1, 4))
    assert alone - shared == pytest.approx(6 * EXPERTS * (7 / 8 - 1 / 2 / 4))


def test_rows_that_leave_a_node_take_longer() -> None:
    """With four devices to a node, each of eight ranks sends four of its seven parts to another."""
    device, settings = find_device("h100"), [f"model.experts={SHARED}", *SHAPE, "batch.sequences=64"]
    run = load(
        RunConfig, "debug/experts", ["run.dir=x", "data.path=x", *settings, "parallel.expert=8", "model.hidden=1024"]
    )
    choice = LayoutChoice(plan_layout(run, 8), run.batch.micro_sequences, run.parallel.recompute)
    inside, outside = (
        step_seconds(WorkloadBuilder(run, device, per_node).build([choice]), constants()).expert[0]
        for per_node in (8, 4)
    )
    c = constants()
    links = device.link_bytes_per_s * c.link_share, device.network_bytes_per_s * c.network_share
    messages = run.batch.sequences / 8 / run.batch.micro_sequences * 3 * 5 * c.message_s
    assert (outside - messages) / (inside - messages) == pytest.approx(4 / 7 * links[0] / links[1])


def test_layouts_that_share_experts_are_judged_but_under_a_stage_that_splits_them_itself() -> None:
    run = load(RunConfig, "debug/experts", ["run.dir=x", "data.path=x", *SHAPE, "batch.sequences=64"])
    choices = {choice.layout for choice in every_choice(run, 8, 8)}
    assert {(one.expert, one.zero) for one in choices if one.tensor == one.pipeline == one.context == 1} == {
        *((expert, zero) for expert in (1, 2, 4, 8) for zero in (1, 2)),
        (1, 3),
    }
    unsplit = [one for one in choices if one.unsplit_experts and (one.tensor, one.pipeline) == (2, 1)]
    assert {(one.expert, one.sequence) for one in unsplit} == {(expert, True) for expert in (1, 2, 4, 8)}


_PUBLISHED = (
    *("parallel.tensor=2", "parallel.expert_tensor=1", "parallel.pipeline=8", "parallel.virtual=4"),
    *("parallel.sequence=true", "batch.ramp=null", "batch.sequences=8192"),
)
_NODE = 8


def _once_to_each_node(run: RunConfig, gpus: int) -> float:
    """What dispatch would take as a multiple of what it does, if a token travelled once to each node with experts of
    it, and from there to each of these: the slower of both links, used at the same time."""
    experts, c, device = run.model.experts, constants(), find_device("h100")
    assert experts is not None
    nodes = gpus // _NODE
    assert experts.groups in (1, nodes)
    reached = min(nodes, experts.top_groups) if experts.groups > 1 else nodes  # by a token: a group lies on a node
    held = experts.count // nodes
    missed = np.prod([1 - held / (reached * held - chosen) for chosen in range(experts.top_k)])
    between = (gpus - _NODE) / gpus / (device.network_bytes_per_s * c.network_share)
    inside = (_NODE - 1) / _NODE / (device.link_bytes_per_s * c.link_share)
    return float(max(reached * (1 - missed) / experts.top_k * between, inside) / between)


@pytest.mark.parametrize(
    ("name", "gpus", "published", "settings", "share", "once", "without_dispatch"),
    [
        ("qwen3-moe/30b-a3b", 16, 203, ("parallel.expert=16", "batch.sequences=1024"), 0.58, 0.78, 0.88),
        ("qwen3-moe/235b-a22b", 256, 253, (*_PUBLISHED, "parallel.expert=32"), 0.55, 0.69, 0.87),
        ("deepseek-v3/671b", 1024, 338, (*_PUBLISHED, "parallel.expert=64", "model.mtp=null"), 0.46, 0.56, 0.69),
    ],
)
def test_published_steps_are_faster_than_planned_ones_by_as_much_as_the_page_says(
    name: str, gpus: int, published: float, settings: tuple[str, ...], share: float, once: float,
    without_dispatch: float,
) -> None:  # fmt: skip
    """TFLOP/s of a GPU, of steps in fp8 whose dispatch is hidden: docs/plan.md."""
    alone = ("parallel.tensor=1", "parallel.pipeline=1", "parallel.sequence=false")
    common = ("parallel.zero=1", "parallel.zero_engine=megatron", "parallel.recompute=none", "batch.micro_sequences=1")
    run = load(RunConfig, name, ["run.dir=x", "data.path=x", *alone, *common, *settings])
    choice = LayoutChoice(plan_layout(run, gpus), run.batch.micro_sequences, run.parallel.recompute)
    seconds = step_seconds(
        WorkloadBuilder(run, find_device("h100"), _NODE).build([choice]), constants(), find_stack("unknown").factor
    )
    flops = training_flops_per_token(run.model) * run.batch.sequences * 4096 / gpus / 1e12
    of_once = _once_to_each_node(run, choice.layout.expert)
    for of_dispatch, expected in ((1.0, share), (of_once, once), (0.0, without_dispatch)):
        total = (seconds.total - (1 - of_dispatch) * seconds.expert)[0]
        assert flops / total / published == pytest.approx(expected, abs=0.01)


def test_the_report_says_how_tokens_are_spread(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "olmoe/1b-7b", "--gpus", "64", "--hardware", "h100", "--as-is", "parallel.expert=8"]
    assert main([*arguments, "parallel.pipeline=1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "tp1ep8pp1dp64+zero1" in said
    assert "spread evenly over the 8 ranks that share experts" in said


def test_more_experts_of_a_token_take_longer() -> None:
    one, two, four = (
        float(_seconds(f"{{count: 8, top_k: {top_k}, ffn: 128, dense_layers: 1}}").total[0]) for top_k in (1, 2, 4)
    )
    assert one < two < four


def test_the_report_has_all_and_active_parameters_and_operations_of_active_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["plan", "olmoe/1b-7b", "--gpus", "64", "--hardware", "h100", "--as-is"]
    assert main([*arguments, "--explain"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("6.92B parameters (1.28B active), 1,024 sequences")
    assert "no step of a mixture of experts was fitted" in text
    model = load(RunConfig, "olmoe/1b-7b", ["run.dir=x", "data.path=x"]).model
    flops = training_flops_per_token(model)
    assert f"6.92B parameters (1.28B active): {flops / 1e9:.4g} GFLOP of training for each token" in text
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["model_parameters"], report["model_active_parameters"]) == (6_919_161_856, 1_282_017_280)
    (option,) = report["options"]
    assert option["flops_per_step"] == flops * 1024 * 4096
    assert option["mfu"] == pytest.approx(option["flops_per_step"] / option["step_s"] / 64 / 989.4e12)
    assert np.isfinite(option["step_s"])
