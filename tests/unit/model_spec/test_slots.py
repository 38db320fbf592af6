"""The places at which a part has parameters of its own."""

import pytest

from pretrain.config.model import Model
from pretrain.model_spec import layer, modules
from pretrain.model_spec.linears import vector
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameter_spec import Normal
from pretrain.model_spec.parts.of_layers import LAYER_PARTS
from pretrain.model_spec.parts.of_models import NETWORK_PARTS
from pretrain.model_spec.slots import LayerPart, NetworkPart, Specs

MODEL = {"family": "gpt", "layers": 2, "hidden": 8, "heads": 2, "sequence_length": 4, "vocabulary": 100}


class _InLayers(LayerPart):
    def attention(self, model: Model, query: Normal, key: Normal) -> Specs:
        yield vector("gain", 1)

    def shared(self, model: Model, name: str) -> bool:
        return name == "self_attention.gain"

    def feed_forward(self, model: Model, number: int) -> Specs | None:
        return iter((vector("other", 3),)) if number else None


class _Around(NetworkPart):
    def front(self, model: Model) -> Specs:
        yield vector("front", 1)

    def words(self, model: Model) -> Specs | None:
        return iter((vector("words", 1),))

    def beside_words(self, model: Model) -> Specs:
        yield vector("more", 1)

    def beside_layer(self, model: Model, number: int) -> Specs:
        yield vector(f"beside_{number}", 1)

    def after_layers(self, model: Model, stack: int) -> Specs | None:
        return iter((vector(f"after_{stack}", 1),))

    def before_head(self, model: Model) -> Specs:
        yield vector("before_head", 1)

    def further(self, model: Model) -> Specs:
        yield vector("further", 1)


def test_a_part_has_its_parameters_where_its_slots_say_and_at_their_depths(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {spec.name: spec for spec in parameter_specs(Model.model_validate(MODEL))}
    for module in (layer, modules):
        monkeypatch.setattr(module, "LAYER_PARTS", (*LAYER_PARTS, _InLayers()))
    monkeypatch.setattr(modules, "NETWORK_PARTS", (*NETWORK_PARTS, _Around()))
    specs = {spec.name: spec for spec in parameter_specs(Model.model_validate(MODEL))}
    assert {name: spec.depth for name, spec in specs.items() if name not in plain} == {
        "front": 0,
        "embedding.words": 0,
        "embedding.more": 0,
        "decoder.layers.0.self_attention.gain": 1,
        "decoder.layers.0.beside_0": 1,
        "decoder.layers.1.self_attention.gain": 2,
        "decoder.layers.1.mlp.other": 2,
        "decoder.layers.1.beside_1": 2,
        "decoder.after_1": 2,
        "before_head": 2,
        "further": 3,
    }
    assert specs["decoder.layers.1.self_attention.gain"].alias_of == "decoder.layers.0.self_attention.gain"
    assert {name for name in plain if name not in specs} == {  # in their places stand others
        "embedding.word_embeddings.weight",
        "decoder.final_layernorm.weight",
        "decoder.final_layernorm.bias",
        *(f"decoder.layers.1.mlp.linear_{layer}.{kind}" for layer in ("fc1", "fc2") for kind in ("weight", "bias")),
    }
