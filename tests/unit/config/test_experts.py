"""`model.experts`: what it counts, and what is refused."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from pretrain.checkpoint.state import SCORING_PARALLEL
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, expert_ranks, plan_layout
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameter_spec import Normal
from pretrain.model_spec.parameters import num_active_parameters, num_parameters
from pretrain.model_spec.router_biases import router_bias_shapes
from pretrain.plan.device import find_device
from pretrain.plan.memory import largest_state
from pretrain.plan.memory_bound import count_parameters, least_bytes
from pretrain.rehearse.run import rehearse
from pretrain.verify.jobs import layouts_that_fit
from pretrain.verify.shrink import shrink, with_layers
from tests.helpers.families import family_config

SPARSE = {"count": 8, "top_k": 2, "ffn": 32, "shared": 2, "dense_layers": 1}


def _config(experts: dict[str, Any] | None = SPARSE, *, family: str = "llama", **sections: Any) -> RunConfig:
    model = {"experts": experts, **sections.pop("model", {})}
    return family_config(family, model=model, **sections)


def test_experts_are_one_parameter_each_of_their_matrices() -> None:
    specs = {spec.name: spec for spec in parameter_specs(_config().model)}
    assert specs["decoder.layers.0.mlp.linear_fc1.weight"].shape == (320, 64), "a dense layer"
    layer = {n.partition(".mlp.")[2]: spec for n, spec in specs.items() if n.startswith("decoder.layers.1.mlp.")}
    assert {name: (spec.shape, spec.axes) for name, spec in layer.items()} == {
        "router.weight": ((8, 64), (None, None)),
        "experts.linear_fc1.weight": ((8, 64, 64), ("expert", "expert_tensor", None)),
        "experts.linear_fc2.weight": ((8, 64, 32), ("expert", None, "expert_tensor")),
        "shared_experts.linear_fc1.weight": ((128, 64), ("tensor", None)),
        "shared_experts.linear_fc2.weight": ((64, 64), (None, "tensor")),
    }
    assert all(spec.decays for spec in layer.values())


def test_updates_are_of_each_expert() -> None:
    lora = {"rank": 2, "targets": ["projection", "fc1", "fc2"]}
    specs = {spec.name: spec for spec in parameter_specs(_config(finetune={"lora": lora}).model)}
    added = {
        name.partition(".mlp.")[2]: (spec.shape, spec.axes)
        for name, spec in specs.items()
        if ".layers.1.mlp." in name and spec.trained
    }
    assert added == {
        "experts.linear_fc1.lora_a.weight": ((8, 2, 64), ("expert", None, None)),
        "experts.linear_fc1.lora_b.weight": ((8, 64, 2), ("expert", "expert_tensor", None)),
        "experts.linear_fc2.lora_a.weight": ((8, 2, 32), ("expert", None, "expert_tensor")),
        "experts.linear_fc2.lora_b.weight": ((8, 64, 2), ("expert", None, None)),
        "shared_experts.linear_fc1.lora_a.weight": ((2, 64), (None, None)),
        "shared_experts.linear_fc1.lora_b.weight": ((128, 2), ("tensor", None)),
        "shared_experts.linear_fc2.lora_a.weight": ((2, 64), (None, "tensor")),
        "shared_experts.linear_fc2.lora_b.weight": ((64, 2), (None, None)),
    }
    assert {name.rpartition(".lora")[0] for name in specs if ".layers.0.mlp." in name and ".lora" in name} == {
        f"decoder.layers.0.mlp.linear_fc{number}" for number in (1, 2)
    }
    deviation = specs["decoder.layers.1.mlp.experts.linear_fc2.lora_a.weight"].init
    assert isinstance(deviation, Normal)
    assert deviation.deviations == ((3 * 32) ** -0.5,)


def test_a_token_passes_through_those_chosen_and_shared() -> None:
    model, dense = _config().model, _config(None).model
    idle = 3 * (8 - 2) * 3 * 64 * 32
    assert num_active_parameters(model) == num_parameters(model, padded=False) - idle
    assert num_active_parameters(dense) == num_parameters(dense, padded=False)
    assert count_parameters(model) == num_parameters(model)
    of_layer = 6 * 64 * (3 * (2 + 2) * 32 + 8 - 3 * 160)
    assert training_flops_per_token(model) == training_flops_per_token(dense) + 3 * of_layer


def test_layers_beyond_those_listed_count_like_the_last() -> None:
    deep = _config({**SPARSE, "dense_layers": 20}, model={"layers": 40}).model
    assert count_parameters(deep) == num_parameters(deep)


@pytest.mark.parametrize(
    ("experts", "sections", "message"),
    [
        ({"capacity_factor": 1.25}, {}, "model.experts.capacity_factor: a capacity drops tokens would make the loss"),
        ({"router_jitter_noise": 0.1}, {}, "noise on the router's input would make the loss depend"),
        ({"aux_loss": 0.01}, {}, "balance within each micro-batch would make the loss depend"),
        ({"top_k": 9}, {}, "model.experts.top_k=9 is more than model.experts.count=8"),
        ({"groups": 3}, {}, "model.experts.groups=3 does not divide model.experts.count=8"),
        ({"groups": 4, "top_groups": 5}, {}, "top_groups=5 is more than model.experts.groups=4"),
        ({"groups": 4, "top_k": 3}, {}, "top_groups=1 groups of 2 experts are fewer than model.experts.top_k=3"),
        ({"groups": 8, "top_groups": 2}, {}, "group_score=two_best is of groups of two experts or more"),
        ({"scores": "sigmoid", "z_loss": 0.1}, {}, "z_loss is of a softmax, and scores=sigmoid has none"),
        ({"bias_rate": 0.1}, {}, "bias_rate=0.1 moves a bias that the model has not"),
        ({"dense_layers": 4}, {}, "leaves no layer with experts, of model.layers=4"),
        ({"dense_layers": 0}, {}, "model.experts.ffn=32 leaves no use for model.ffn"),
        ({}, {"model": {"mup": {"base_width": 32, "base_ffn": 64}}}, "experts have their own size: leave it out"),
        ({}, {"model": {"bias": True}}, "model.experts has no biases: set model.bias=false"),
        ({}, {"model": {"ffn_dropout": 0.1}}, "model.ffn_dropout=0.1 is drawn by row and position"),
        ({}, {"model": {"shared_layers": True}}, "leave out model.shared_layers"),
        (
            {},
            {"finetune": {"lora": {"rank": 2, "targets": ["qkv", "fc2"], "dropout": 0.1}}},
            "experts read rows of many: set it to 0, or leave fc2 out of finetune.lora.targets",
        ),
    ],
)
def test_refused(experts: dict[str, Any], sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        _config({**SPARSE, **experts}, **sections)


def test_biases_of_routers_are_no_parameters() -> None:
    model = _config({**SPARSE, "selection_bias": True, "bias_rate": 0.1}).model
    assert router_bias_shapes(model) == {f"decoder.layers.{layer}.mlp.router.bias": (8,) for layer in (1, 2, 3)}
    assert num_parameters(model) == num_parameters(_config().model)
    assert router_bias_shapes(_config().model) == router_bias_shapes(_config(None).model) == {}


def test_other_families_have_none() -> None:
    with pytest.raises(ValidationError, match=r"model\.experts is for the llama family: leave it out for t5"):
        _config(family="t5v1.1")


def test_norms_over_all_heads_are_rms_norms() -> None:
    with pytest.raises(ValidationError, match=r"model.qk_norm_span=all_heads is of RMS norms"):
        _config(None, model={"qk_norm_span": "all_heads"})


def test_layouts_that_cannot_share_features() -> None:
    with pytest.raises(ConfigError, match=r"does not divide the size of model.experts"):
        plan_layout(_config({**SPARSE, "ffn": 33}, parallel={"tensor": 2}), 2)
    spans = {"qk_norm": True, "qk_norm_span": "all_heads"}
    with pytest.raises(ConfigError, match=r"does not divide model.kv_heads"):
        plan_layout(_config(None, model=spans, parallel={"tensor": 4}), 4)


def test_verify_keeps_the_kind_of_layers() -> None:
    config = _config({"count": 64, "top_k": 8, "shared": 1, "ffn": 64, "dense_layers": 3}, model={"layers": 16})
    layouts = [plan_layout(config, 1), plan_layout(_config(parallel={"tensor": 2, "pipeline": 2}), 4)]
    small = with_layers(shrink(config, layouts), layouts[1])
    assert small.model.experts is not None
    assert (small.model.experts.count, small.model.experts.top_k) == (8, 2)
    assert [small.model.has_experts(layer) for layer in range(4)] == [False, True, True, True]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"count": 256, "top_k": 8, "groups": 8, "top_groups": 4}, (8, 2, 4, 2)),
        ({"count": 16, "top_k": 4, "groups": 4, "top_groups": 2}, (8, 2, 4, 2)),
        ({"count": 64, "top_k": 48, "groups": 2, "top_groups": 2}, (8, 6, 2, 2)),
        ({"count": 6, "top_k": 1, "groups": 3, "top_groups": 1}, (6, 1, 3, 1)),
    ],
)
def test_verify_keeps_groups(settings: dict[str, Any], kept: tuple[int, ...]) -> None:
    config = _config({**SPARSE, **settings})
    experts = shrink(config, [plan_layout(config, 1)]).model.experts
    assert experts is not None
    assert (experts.count, experts.top_k, experts.groups, experts.top_groups) == kept


UNSPLIT = {"tensor": 2, "expert": 1, "expert_tensor": 1}


@pytest.mark.parametrize(
    ("sections", "ranks", "says"),
    [
        ({"experts": None}, 2, "the model has none: set parallel.expert=1"),
        ({}, 1, "does not divide the data and context ranks (1): the nearest that does is 1"),
        ({"experts": {**SPARSE, "count": 9}}, 2, "does not divide model.experts.count (9)"),
        ({"parallel": {"zero": 3, "zero_engine": "deepspeed"}}, 2, "set parallel.zero=2, or parallel.expert=1"),
        ({"experts": None, "parallel": UNSPLIT}, 2, "parallel.expert_tensor=1 shares the experts of layers"),
        ({"parallel": {**UNSPLIT, "tensor": 4, "expert_tensor": 2}}, 4, "set it to parallel.tensor=4, or to 1"),
        ({"parallel": {**UNSPLIT, "expert": 4}}, 2, "does not divide the tensor, data and context ranks (2)"),
        (
            {"parallel": {**UNSPLIT, "zero": 3, "zero_engine": "deepspeed"}},
            2,
            "parallel.expert_tensor=1: DeepSpeed's stage 3 shards each weight over all data and context ranks, those "
            "of experts too: set parallel.zero=2, or parallel.expert_tensor=null",
        ),
    ],
)
def test_what_ranks_cannot_share_is_refused(sections: dict[str, Any], ranks: int, says: str) -> None:
    parallel = {"expert": 2, **sections.pop("parallel", {})}
    with pytest.raises(ConfigError, match=re.escape(says)):
        plan_layout(_config(**sections, parallel=parallel), ranks)


def test_scoring_is_of_layouts_that_share_no_experts() -> None:
    config = _config(parallel={"expert": 2})
    with pytest.raises(ConfigError, match=re.escape("for scoring and generation each data rank holds all experts")):
        plan_layout(config, 2, trains=False)
    with pytest.raises(ConfigError, match=re.escape("each data rank holds all experts: set parallel.expert=1")):
        rehearse(config, 2, ranks=[0], device=find_device("h100"), per_node=8, what="score")
    assert (SCORING_PARALLEL["expert"], SCORING_PARALLEL["expert_tensor"]) == (1, None)


def test_ranks_may_share_as_many_experts_as_divide_among_them() -> None:
    config = _config({**SPARSE, "count": 12})
    assert expert_ranks(config, Layout(world=16, tensor=2, pipeline=2)) == [1, 2, 4]
    assert expert_ranks(_config(None), Layout(world=4)) == [1]
    assert expert_ranks(config, Layout(world=16, tensor=2, pipeline=2, unsplit_experts=True)) == [1, 2, 4]
    assert expert_ranks(config, Layout(world=6, tensor=3, unsplit_experts=True)) == [1, 2, 3, 6]


def test_ranks_that_share_experts_hold_a_part_of_them() -> None:
    whole, shared = (
        largest_state(config, plan_layout(config, 4))
        for config in (_config(parallel={"expert": expert}) for expert in (1, 4))
    )
    of_experts = 3 * 8 * (64 * 64 + 64 * 32)
    assert whole.weights - shared.weights == 4 * 0.75 * of_experts
    assert whole.gradients - shared.gradients == 4 * 0.75 * of_experts
    assert whole.optimizer == shared.optimizer, "of whose states each rank has a part either way"
    config = _config(parallel={"expert": 4})
    assert least_bytes(config, plan_layout(config, 4))["weights"] <= shared.weights


def test_tensor_ranks_that_split_no_expert_hold_all_of_each() -> None:
    """Four expert ranks of four ranks hold a quarter of the experts, as much as with features split by two; without
    expert ranks, each has all."""
    split, unsplit, alone = (
        largest_state(config, plan_layout(config, 4))
        for config in (
            _config(parallel={"tensor": 2, **more}) for more in ({"expert": 2}, {**UNSPLIT, "expert": 4}, UNSPLIT)
        )
    )
    of_experts = 3 * 8 * (64 * 64 + 64 * 32)
    assert split == unsplit
    assert alone.weights - unsplit.weights == 4 * 0.75 * of_experts
    assert alone.optimizer == unsplit.optimizer, "of whose states each rank has a part either way"
    config = _config(parallel=UNSPLIT)
    assert least_bytes(config, plan_layout(config, 4))["weights"] <= alone.weights


def test_layouts_that_share_experts_are_made_small_and_verified() -> None:
    for layout in layouts_that_fit(_config({**SPARSE, "count": 16}), 6, False)[0]:
        assert shrink(_config({**SPARSE, "count": 16}), [layout]).model.experts.count % layout.expert == 0  # type: ignore[union-attr]
    assert {layout.expert for layout in layouts_that_fit(_config(), 4, False)[0]} == {1, 2, 4}
    assert {layout.expert for layout in layouts_that_fit(_config(None), 4, False)[0]} == {1}
