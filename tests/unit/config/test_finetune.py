"""`finetune`: which parameters it trains, and what it refuses."""

from typing import Any

import pytest
from pydantic import ValidationError

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameters import num_parameters, num_trained_parameters
from pretrain.plan.device import find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import constants
from pretrain.plan.estimate.held import held_bytes
from pretrain.plan.memory_bound import count_parameters
from pretrain.random.init import initial_values
from tests.helpers.families import family_config

CLASSES = {"name": "classification", "labels": ["a", "b", "c"]}


def _config(family: str, **sections: Any) -> RunConfig:
    return RunConfig.model_validate(family_config(family).model_dump(mode="json") | sections)


def test_the_head_alone() -> None:
    model = _config("bert", objective=CLASSES, finetune={"train": "head"}).model
    trained = {spec.name for spec in parameter_specs(model) if spec.trained}
    assert trained == {f"head.{part}.{leaf}" for part in ("pooler", "classifier") for leaf in ("weight", "bias")}
    assert num_trained_parameters(model) == 64 * 64 + 64 + 3 * 64 + 3


def test_the_top_layers_and_what_follows() -> None:
    model = _config("llama", finetune={"train": "top", "layers": 1}).model
    trained = {spec.name for spec in parameter_specs(model) if spec.trained}
    assert trained == {
        spec.name
        for spec in parameter_specs(model)
        if spec.name.startswith(("decoder.layers.3.", "decoder.final_layernorm.", "output_layer."))
    }


def test_a_tied_output_layer_is_frozen_with_its_embedding() -> None:
    specs = {
        spec.name: spec for spec in parameter_specs(_config("gemma", finetune={"train": "top", "layers": 1}).model)
    }
    assert not specs["output_layer.weight"].trained
    assert not specs["embedding.word_embeddings.weight"].trained


def test_lora_adds_two_matrices_to_each_target() -> None:
    finetune = {"lora": {"rank": 4, "targets": ["qkv", "fc2"]}}
    model, plain = _config("bert", finetune=finetune).model, _config("bert").model
    added = {spec.name: spec for spec in parameter_specs(model) if spec.trained}
    assert len(added) == 4 * 2 * 2
    assert num_parameters(model) - num_parameters(plain) == num_trained_parameters(model)
    b = added["encoder.layers.0.self_attention.linear_qkv.lora_b.weight"]
    assert (b.shape, b.axes) == ((3 * 64, 4), ("tensor", None))
    a = added["encoder.layers.0.mlp.linear_fc2.lora_a.weight"]
    assert (a.shape, a.axes) == ((4, 256), (None, "tensor"))


BOTH = ["embedding", "head"]
TABLE = "embedding.word_embeddings.weight"


@pytest.mark.parametrize(
    ("family", "modules", "names"),
    [
        ("llama", BOTH, {TABLE, "output_layer.weight"}),
        ("llama", ["embedding"], {TABLE}),
        ("llama", ["head"], {"output_layer.weight"}),
        ("gemma", BOTH, {TABLE, "output_layer.weight"}),  # tied
        ("gemma", ["embedding"], {TABLE, "output_layer.weight"}),
        ("bert", ["embedding"], {TABLE, "output_layer.weight"}),
        ("t5", BOTH, {TABLE, "output_layer.weight"}),
    ],
)
def test_modules_are_trained_beside_updates(family: str, modules: list[str], names: set[str]) -> None:
    plain, model = (
        _config(family, finetune={"lora": lora}).model for lora in ({}, {"modules_to_save": modules})
    )  # fmt: skip
    updates, trained = ({spec.name for spec in parameter_specs(m) if spec.trained} for m in (plain, model))
    assert trained - updates == names
    assert not updates - trained
    assert num_parameters(model) == num_parameters(plain)


def test_an_encoder_trains_all_that_lies_behind_its_layers() -> None:
    model = _config("bert", finetune={"lora": {"modules_to_save": BOTH, "head_rate": 0.5, "embedding_rate": 2}}).model
    specs = {spec.name: spec for spec in parameter_specs(model)}
    rates = {name: spec.lr_mult for name, spec in specs.items() if spec.trained and "lora" not in name}
    assert rates.pop("embedding.word_embeddings.weight") == rates.pop("output_layer.weight") == 2
    assert {"head.transform.weight", "head.norm.bias", "output_layer.bias"} <= rates.keys()
    assert set(rates.values()) == {0.5}
    assert {spec.lr_mult for spec in specs.values() if "lora" in spec.name} == {1}


def test_ends_have_rates_of_their_own_which_widths_multiply() -> None:
    lora = {"modules_to_save": BOTH, "embedding_rate": 0.1, "head_rate": 0.2}
    names = [TABLE, "output_layer.weight", "decoder.layers.0.mlp.linear_fc2.lora_b.weight"]
    assert _of_parts("llama", {"lora": lora}, names) == [(0.1, 0), (0.2, 0), (1, 0)]
    assert _of_parts("llama", {"lora": lora, "unfreeze_steps": 3}, names) == [(0.1, 15), (0.2, 0), (1, 12)]


def _of_parts(family: str, finetune: dict[str, Any], names: list[str]) -> list[tuple[float, int]]:
    specs = {spec.name: spec for spec in parameter_specs(_config(family, finetune=finetune).model)}
    return [(specs[name].lr_mult, specs[name].frozen_updates) for name in names]


def test_layers_are_counted_from_the_head_down() -> None:
    last, first = "decoder.layers.3.mlp.linear_fc2.weight", "decoder.layers.0.mlp.linear_fc2.weight"
    names = [
        "output_layer.weight",
        "decoder.layers.3.final.norm.weight",
        last,
        first,
        "embedding.word_embeddings.weight",
    ]
    found = _of_parts("llama", {"rate_decay": 0.5, "unfreeze_steps": 10}, names)
    assert found == [(1, 0), (1, 0), (0.5**2, 10), (0.5**5, 40), (0.5**6, 50)]


def test_an_encoder_is_below_its_decoder() -> None:
    layers = [f"{stack}.layers.{layer}.mlp.linear_fc2.weight" for stack in ("decoder", "encoder") for layer in (1, 0)]
    names = [*layers, "encoder.layers.1.final.norm.weight", "embedding.word_embeddings.weight"]
    depths = [1, 2, 3, 4, 3, 5]
    found = _of_parts("t5", {"rate_decay": 0.5, "unfreeze_steps": 1}, ["decoder.layers.1.final.norm.weight", *names])
    assert found == [(1, 0), *((0.5 ** (depth + 1), depth) for depth in depths)]


def test_what_joins_first_is_the_first_that_is_trained() -> None:
    names = [f"decoder.layers.{layer}.mlp.linear_fc2.lora_b.weight" for layer in (3, 2)]
    assert _of_parts("llama", {"unfreeze_steps": 5, "lora": {}}, names) == [(1, 0), (1, 5)]


@pytest.mark.parametrize(("family", "adapters"), [("bert", 4 * 2), ("bart", 2 * 2 + 2 * 3), ("gemma", 4 * 2)])
def test_adapters_are_trained_with_norms_and_head(family: str, adapters: int) -> None:
    objective = CLASSES | {"sequence_length": 16}
    model = _config(family, objective=objective, finetune={"adapters": {"size": 8}}).model
    specs = [spec for spec in parameter_specs(model) if spec.alias_of is None]
    added = [spec for spec in specs if ".adapter." in spec.name]
    assert sum(spec.size for spec in added) == adapters * (2 * 8 * 64 + 8 + 64)
    for spec in specs:
        assert spec.trained == (".adapter." in spec.name or "norm." in spec.name or spec.name.startswith("head."))
    matrix = next(spec for spec in added if spec.is_matrix)
    values = initial_values(matrix, 1, 0, matrix.size).double()
    assert 0.018 < float(values.abs().max()) <= 0.02
    assert float(values.std()) == pytest.approx(0.0088, rel=0.1)


@pytest.mark.parametrize("finetune", [{}, {"lora": {}}, {"train": "top", "layers": 3}, {"adapters": {}}])
def test_the_bound_counts_trained_parameters_of_many_layers(finetune: dict[str, Any]) -> None:
    model = _config("llama", finetune=finetune).model.model_copy(update={"layers": 40})
    assert count_parameters(model, trained=True) == num_trained_parameters(model)


@pytest.mark.parametrize(
    ("family", "sections", "problem"),
    [
        ("bert", {"finetune": {"train": "head"}}, "objective.name=masked has none"),
        ("bert", {"finetune": {"train": "top"}}, "set it"),
        ("bert", {"finetune": {"layers": 2}}, "leave it out, or set that"),
        ("bert", {"finetune": {"train": "top", "layers": 5}}, "is more than the 4 layers of the model"),
        ("albert", {"finetune": {"train": "top", "layers": 2}}, "the model's have weights in common"),
        ("bert", {"finetune": {"lora": {"targets": ["cross_q"]}}}, "targets=cross_q matches no linear layer"),
        ("t5", {"finetune": {"lora": {"targets": ["q_proj"]}}}, "use qkv, projection, cross_q"),
        ("bert", {"finetune": {"train": "top", "layers": 1, "lora": {}}}, "leave one of them out"),
        ("bert", {"finetune": {"lora": {}}, "precision": "fp8"}, "is for fp32, bf16 and fp16"),
        ("llama", {"finetune": {"lora": {"modules_to_save": ["head", "head"]}}}, "has a module twice"),
        ("llama", {"finetune": {"lora": {"modules_to_save": ["lm_head"]}}}, "modules_to_save"),
        ("gemma", {"finetune": {"lora": {"modules_to_save": ["head"]}}}, "name embedding too"),
        (
            "bert",
            {"objective": CLASSES, "finetune": {"lora": {"modules_to_save": BOTH}}},
            "a task head is trained in any case",
        ),
        (
            "llama",
            {"finetune": {"lora": {"modules_to_save": ["head"], "embedding_rate": 0.1}}},
            "embedding_rate=0.1 is the rate of no parameter",
        ),
        (
            "gemma",
            {"finetune": {"lora": {"modules_to_save": BOTH, "head_rate": 0.1}}},
            "tied to the token embeddings and has their rate",
        ),
        (
            "llama",
            {"finetune": {"rate_decay": 0.9, "lora": {"modules_to_save": BOTH, "head_rate": 0.1}}},
            "each give the head a learning rate",
        ),
        ("bert", {"finetune": {"adapters": {}, "lora": {}}}, "finetune.adapters and finetune.lora each choose"),
        ("bert", {"finetune": {"adapters": {}, "train": "top", "layers": 1}}, "adapters and finetune.train=top"),
        ("bert", {"finetune": {"adapters": {"size": 0}}}, "adapters.size"),
        ("bert", {"finetune": {"adapters": {}}, "precision": "fp8"}, "is for fp32, bf16 and fp16"),
        ("albert", {"finetune": {"rate_decay": 0.9}}, "the model's have weights in common: leave it out"),
        ("bert", {"finetune": {"rate_decay": 1.1}}, "rate_decay"),
        ("bert", {"finetune": {"unfreeze_steps": -1}}, "unfreeze_steps"),
        (
            "bert",
            {"objective": CLASSES, "finetune": {"train": "head", "unfreeze_steps": 5}},
            "which finetune.train=head freezes: leave one of them out",
        ),
    ],
)
def test_a_set_that_cannot_be_trained_is_refused(family: str, sections: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        _config(family, **sections)


def test_dropout_of_updates_needs_whole_lanes_of_split_inputs() -> None:
    def check(dropout: float, target: str) -> None:
        lora = {"dropout": dropout, "targets": [target]}
        sections = {"model": {"ffn": 72}, "finetune": {"lora": lora}, "parallel": {"tensor": 4}}
        plan_layout(family_config("bert", **sections), 4)

    with pytest.raises(ConfigError, match=r"each tensor rank needs a multiple of 4 features of model\.ffn=72"):
        check(0.1, "fc2")
    check(0.0, "fc2")
    check(0.1, "fc1")


def test_dropped_inputs_of_updates_are_planned() -> None:
    def saved(dropout: float, family: str, targets: tuple[str, ...]) -> float:
        config = _config(family, finetune={"lora": {"dropout": dropout, "targets": targets}})
        choice = LayoutChoice(plan_layout(config, 1), 2, "none")
        work = WorkloadBuilder(config, find_device("h100"), 8).build([choice])
        return float(held_bytes(work, constants()).activations.max())

    model = _config("llama").model
    features, positions = model.hidden + model.ffn_dim, 2 * model.sequence_length
    more = saved(0.1, "llama", ("qkv", "fc2")) - saved(0.0, "llama", ("qkv", "fc2"))
    assert more == pytest.approx(model.layers * positions * features * 5), "fp32 and a byte of mask"
    assert saved(0.1, "bart", ("cross_kv",)) > saved(0.0, "bart", ("cross_kv",))
