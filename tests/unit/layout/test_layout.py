"""Legality of layouts, and where ranks sit."""

from itertools import product
from typing import Any

import pytest

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, plan_layout
from tests.helpers.small_configs import config


def refusal(run: RunConfig, world: int) -> str:
    with pytest.raises(ConfigError) as error:
        plan_layout(run, world)
    return str(error.value)


# What the layout is, the ranks, and what the refusal must say: the rule, and the nearest legal value.
ILLEGAL: dict[str, tuple[dict[str, Any], int, tuple[str, ...]]] = {
    "heads": ({"parallel": {"tensor": 8}}, 8, ("parallel.tensor=8", "model.heads (12)", "nearest that does is 6")),
    "heads of keys": (
        {"parallel": {"tensor": 4}, "model": {"kv_heads": 6}},
        4,
        ("parallel.tensor=4", "model.kv_heads (6)", "nearest that does is 3"),
    ),
    "rows of queries and keys": (
        {"parallel": {"tensor": 4}, "model": {"kv_heads": 1, "head_dim": 5}},
        4,
        ("parallel.tensor=4", "(model.heads + 2 * model.kv_heads) * model.head_dim (70)", "nearest that does is 5"),
    ),
    "heads of keys and context": (
        {"parallel": {"tensor": 2, "context": 3}, "model": {"kv_heads": 4}},
        6,
        ("parallel.context=3", "model.kv_heads / parallel.tensor (2)", "nearest that does is 2"),
    ),
    "ffn": (
        {"parallel": {"tensor": 4}, "model": {"ffn": 6 * 47}},
        4,
        ("parallel.tensor=4", "model.ffn (282)", "nearest that does is 3"),
    ),
    "vocabulary": (
        {"parallel": {"tensor": 3}, "model": {"vocabulary": 250, "vocabulary_multiple": 128}},
        3,
        ("parallel.tensor=3", "the padded vocabulary (256)", "nearest that does is 2", "model.vocabulary_multiple=384"),
    ),
    "vocabulary that is not padded": (
        {"parallel": {"tensor": 2}, "model": {"vocabulary": 513, "vocabulary_multiple": 1}},
        2,
        ("the padded vocabulary (513): the nearest that does is 1, or in a new run set model.vocabulary_multiple=2,",),
    ),
    "blocks of 8-bit numbers": (
        {"precision": "fp8", "model": {"hidden": 100, "head_dim": 16, "heads": 10}},
        1,
        ("precision=fp8", "blocks of 16", "model.hidden is 100", "bf16"),
    ),
    "blocks of 8-bit numbers, shared": (
        {"precision": "fp8", "parallel": {"tensor": 4}, "model": {"ffn": 4 * 40}},
        4,
        ("precision=fp8", "model.ffn / parallel.tensor=4 is 40", "bf16"),
    ),
    "sequence without tensor": (
        {"parallel": {"sequence": True}},
        1,
        ("parallel.sequence", "parallel.tensor is 1", "parallel.sequence=false or parallel.tensor=2"),
    ),
    "sequence length": (
        {"parallel": {"tensor": 4, "sequence": True}, "model": {"sequence_length": 30}},
        4,
        ("parallel.tensor=4", "model.sequence_length (30)", "nearest that does is 3"),
    ),
    "context heads": (
        {"parallel": {"tensor": 2, "context": 4}},
        8,
        ("parallel.context=4", "model.heads / parallel.tensor (6)", "nearest that does is 3"),
    ),
    "context length": (
        {"parallel": {"context": 3}},
        3,
        ("parallel.context=3", "model.sequence_length (32)", "nearest that does is 2"),
    ),
    "context with sequence": (
        {"parallel": {"tensor": 4, "context": 3, "sequence": True}, "model": {"sequence_length": 30}},
        12,
        ("parallel.tensor=4", "model.sequence_length / parallel.context (10)", "nearest that does is 5"),
    ),
    "virtual without pipeline": (
        {"parallel": {"virtual": 2}},
        1,
        ("parallel.virtual", "parallel.pipeline is 1", "virtual=1"),
    ),
    "pipeline": (
        {"parallel": {"pipeline": 9}},
        9,
        ("8 layers cannot be divided into 9 chunks", "parallel.pipeline=9"),
    ),
    "pipeline x virtual": (
        {"parallel": {"pipeline": 4, "virtual": 3}},
        4,
        ("8 layers cannot be divided into 12 chunks", "parallel.virtual=3"),
    ),
    "world": (
        {"parallel": {"tensor": 2, "pipeline": 2}},
        6,
        ("6 ranks", "parallel.tensor=2 x parallel.pipeline=2", "a multiple of 4 ranks"),
    ),
    "world with context": (
        {"parallel": {"tensor": 2, "context": 2}},
        6,
        ("6 ranks", "parallel.tensor=2", "parallel.context=2", "a multiple of 4 ranks"),
    ),
    "batch": (
        {"batch": {"sequences": 20, "micro_sequences": 2}},
        4,
        ("20 sequences", "4 data ranks", "batch.micro_sequences=2", "nearest that does is 16"),
    ),
    "batch of a ramp": (
        {"batch": {"sequences": 24, "ramp": {"start_sequences": 6, "increment_sequences": 6, "tokens": 100}}},
        4,
        ("6 sequences (during batch.ramp)", "4 data ranks", "nearest that does is 8"),
    ),
    "batch smaller than the ranks": ({"batch": {"sequences": 2}}, 8, ("2 sequences", "nearest that does is 8")),
    "interleaved batch": (
        {"batch": {"sequences": 6}, "parallel": {"pipeline": 4, "virtual": 2}},
        4,
        ("6 sequences", "4 stages (interleaved)", "nearest that does is"),
    ),
    "zero 2 of megatron": (
        {"parallel": {"zero": 2}},
        4,
        ("parallel.zero=2", "megatron-core", "parallel.zero_engine=deepspeed", "parallel.zero=1"),
    ),
    "offload of megatron": (
        {"parallel": {"offload_optimizer": True}},
        4,
        ("DeepSpeed's", "parallel.zero_engine=deepspeed"),
    ),
    "offload without sharing": (
        {"parallel": {"zero": 0, "zero_engine": "deepspeed", "offload_optimizer": True}},
        4,
        ("stage 1 on", "parallel.zero=1 or more"),
    ),
    "offload of weights that are not shared": (
        {"parallel": {"zero": 2, "zero_engine": "deepspeed", "offload_parameters": True}},
        4,
        ("parallel.zero=2 holds all parameters", "parallel.zero=3"),
    ),
    "second copies of weights that are not shared": (
        {"parallel": {"zero": 2, "zero_engine": "deepspeed", "hpz": 2}},
        4,
        ("parallel.hpz=2", "parallel.zero=3"),
    ),
    "second copies over part of the ranks": (
        {"parallel": {"zero": 3, "zero_engine": "deepspeed", "hpz": 3}},
        4,
        ("parallel.hpz=3", "the data ranks (4)", "nearest that does is 2"),
    ),
    "overlap with nothing": (
        {"parallel": {"zero": 1, "zero_engine": "deepspeed", "overlap": True}},
        4,
        ("parallel.overlap", "parallel.zero=2 or parallel.zero_engine=megatron"),
    ),
    "every batch of the ramp": (
        {"batch": {"sequences": 16, "ramp": {"start_sequences": 4, "increment_sequences": 6, "tokens": 100}}},
        4,
        ("10 sequences", "4 data ranks", "nearest that does is 8"),
    ),
    "chunks of layers that are one": (
        {"model": {"shared_layers": True}, "parallel": {"pipeline": 2, "virtual": 2}},
        2,
        ("model.shared_layers", "parallel.virtual=1"),
    ),
    "layers that are one, recomputed under stage 3": (
        {
            "model": {"shared_layers": True},
            "parallel": {"zero": 3, "zero_engine": "deepspeed", "recompute": "full"},
        },
        2,
        ("model.shared_layers and parallel.recompute=full", "stage 3", "parallel.recompute=selective or none"),
    ),
    "layers that are one, recomputed, with overlap": (
        {"model": {"shared_layers": True}, "parallel": {"overlap": True, "recompute": "full"}},
        2,
        ("model.shared_layers and parallel.recompute=full", "turn parallel.overlap off"),
    ),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_illegal_layout_names_the_rule_and_the_nearest_legal_value(case: str) -> None:
    sections, world, expected = ILLEGAL[case]
    said = refusal(config(**sections), world)
    assert all(part in said for part in expected), said


def test_during_a_ramp_batches_are_multiples_of_the_data_ranks_alone() -> None:
    ramp = {"start_sequences": 4, "increment_sequences": 4, "tokens": 100}
    plan_layout(config(batch={"sequences": 32, "micro_sequences": 8, "ramp": ramp}), 4)
    with pytest.raises(ConfigError, match="of 28 sequences does not divide over 4 data ranks x batch"):
        plan_layout(config(batch={"sequences": 28, "micro_sequences": 8, "ramp": ramp}), 4)


def test_the_nearest_batch_that_a_refusal_names_is_legal() -> None:
    for sequences in range(1, 40):
        try:
            plan_layout(config(batch={"sequences": sequences, "micro_sequences": 2}), 3)
        except ConfigError as error:
            nearest = int(str(error).rsplit(" ", 1)[1])
            plan_layout(config(batch={"sequences": nearest, "micro_sequences": 2}), 3)


@pytest.mark.parametrize("tensor", [1, 2, 3])
@pytest.mark.parametrize("context", [1, 2])
@pytest.mark.parametrize("pipeline", [1, 2, 4])
@pytest.mark.parametrize("data", [1, 2, 5])
def test_coordinates_meet_every_place_once_in_megatron_order(
    tensor: int, context: int, pipeline: int, data: int
) -> None:
    layout = Layout(
        world=tensor * context * pipeline * data,
        tensor=tensor,
        pipeline=pipeline,
        zero=1,
        context=context,
    )
    # Tensor ranks are neighbours, then context, then data, then pipeline.
    places = product(range(pipeline), range(data), range(context), range(tensor))
    expected = [place[::-1] for place in places]
    assert [layout.coordinates(rank) for rank in range(layout.world)] == expected


def test_legal_layout_takes_its_data_ranks_from_the_world() -> None:
    parallel = {"tensor": 2, "pipeline": 2, "virtual": 2, "sequence": True, "zero": 1}
    layout = plan_layout(config(parallel=parallel, batch={"sequences": 8}), 8)
    assert layout == Layout(world=8, tensor=2, pipeline=2, virtual=2, sequence=True, zero=1)
    assert layout.data == 2
    assert str(layout) == "tp2pp2dp2+sp+vp2+zero1"


def test_stage_zero_is_the_same_for_both_engines() -> None:
    found = plan_layout(config(parallel={"zero": 0, "zero_engine": "deepspeed"}), 2)
    assert found == plan_layout(config(parallel={"zero": 0}), 2)


@pytest.mark.parametrize("key", ["offload_optimizer", "offload_parameters"])
def test_states_on_nvme_are_refused_with_the_reason(key: str) -> None:
    with pytest.raises(ConfigError, match=f"parallel.{key}=nvme: .* departs from the same training in memory"):
        config(parallel={"zero": 3, "zero_engine": "deepspeed", key: "nvme"})


def test_context_ranks_hold_copies_and_are_named_where_there_are_some() -> None:
    parallel = {"tensor": 2, "pipeline": 2, "context": 2, "zero": 0}
    layout = plan_layout(config(parallel=parallel), 24)
    assert (layout.context, layout.data, layout.replicas) == (2, 3, 6)
    assert str(layout) == "tp2cp2pp2dp3"


def test_plain_layout_has_a_plain_name() -> None:
    assert str(plan_layout(config(parallel={"zero": 0}), 1)) == "tp1pp1dp1"
