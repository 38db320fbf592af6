"""What is declared of parameters, how they are counted, and where they lie."""

import math
from dataclasses import replace

import pytest

from pretrain.config.init import T5Init
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.plan.declaration import Declared, Normal
from pretrain.plan.layout import plan_layout
from pretrain.plan.parameters import chunks_of, held_by_chunks, layer_matrices, num_parameters, rank_parameters
from pretrain.plan.parts import WORDS, declared
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.tiny import tiny_config
from tests.unit.plan.configs import small_model as model


class TestParameters:
    def test_counted_by_hand(self) -> None:
        # qkv 4x12+12, output 4x4+4, feed-forward 4x16+16 and 16x4+4, two norms 8+8, final norm 8, 10 + 8 rows of 4.
        assert num_parameters(model(), padded=False) == 60 + 20 + 80 + 68 + 16 + 8 + 18 * 4

    def test_padding_adds_rows(self) -> None:
        assert num_parameters(model()) - num_parameters(model(), padded=False) == 6 * 4

    def test_an_untied_head_adds_a_second_matrix(self) -> None:
        assert num_parameters(model(tied_head=False)) - num_parameters(model()) == 16 * 4

    def test_post_norm_has_no_final_norm(self) -> None:
        assert num_parameters(model()) - num_parameters(model(norm="post")) == 2 * 4

    def test_heads_wider_than_the_model(self) -> None:
        # Four heads' width more: 4 rows in each of q, k, v and the output, 3 x 4 biases.
        wide = num_parameters(model(head_dim=4)) - num_parameters(model())
        assert wide == 4 * 4 * 4 + 3 * 4

    def test_shared_keys_are_fewer(self) -> None:
        # One head of keys and one of values less, each 2 rows of 4 and 2 biases.
        assert num_parameters(model()) - num_parameters(model(kv_heads=1)) == 2 * (2 * 4 + 2)

    def test_matrices_of_a_layer(self) -> None:
        assert layer_matrices(model()) == 4 * 12 + 4 * 4 + 2 * 4 * 16


def _by_name(config: RunConfig, prefix: str = "") -> dict[str, Declared]:
    return {d.name: d for d in declared(config.model, prefix)}


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_and_no_others_are_exempt_from_decay(family: str) -> None:
    for d in declared(family_config(family).model):
        assert d.decays == (len(d.shape) > 1), d.name


def test_only_rows_of_the_vocabulary_are_padding() -> None:
    found = _by_name(family_config("bert"))  # of 250, padded to 256
    assert {name for name, d in found.items() if d.padding} == {WORDS, "output_layer.weight", "output_layer.bias"}
    assert found["output_layer.bias"].real_shape == (250,)
    assert found[WORDS].real_shape == (250, 64)


def test_a_tied_head_is_an_alias_and_an_untied_one_is_not() -> None:
    assert _by_name(tiny_config())["output_layer.weight"].alias_of == WORDS
    assert _by_name(tiny_config(model={"tied_head": False}))["output_layer.weight"].alias_of is None


def test_a_prefix_goes_before_names_and_aliases() -> None:
    plain, prefixed = declared(tiny_config().model), declared(tiny_config().model, "generator.")
    assert [d.name for d in prefixed] == [f"generator.{d.name}" for d in plain]
    (alias,) = (d for d in prefixed if d.alias_of)
    assert alias.alias_of == f"generator.{WORDS}"


def test_queries_of_a_group_lie_before_their_keys_and_values() -> None:
    """Of 4 queries and 2 keys, 16 wide: 2 queries, key, value, and again. T5's scheme tells them apart."""
    unchecked = tiny_config().model.model_copy(update={"kv_heads": 2, "init": T5Init()})
    fused = {d.name: d for d in declared(unchecked)}["decoder.layers.0.self_attention.linear_qkv.weight"]
    query, key = (64 * 16) ** -0.5, 64**-0.5
    assert fused.shape == (8 * 16, 64)
    assert fused.init == Normal((query, query, key, key), rows=16)


LAYOUTS = [
    {},
    {"tensor": 2},
    {"pipeline": 2},
    {"pipeline": 2, "virtual": 2},
    {"tensor": 2, "pipeline": 2},
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("parallel", LAYOUTS, ids=str)
def test_chunks_hold_every_parameter_once_and_copies_beside(family: str, parallel: dict[str, int]) -> None:
    config = family_config(family, parallel=parallel)
    layout = plan_layout(config, config.parallel.model_ranks)
    held = [h for chunk in chunks_of(config.model, layout) for h in chunk]
    own = [h.declared for h in held if not h.copy]
    assert sorted(d.name for d in own) == sorted(d.name for d in declared(config.model) if d.alias_of is None)
    copies = {h.name for h in held if h.copy}
    assert copies == ({"output_layer.weight"} if config.model.tied_head and layout.pipeline > 1 else set())
    assert {h.declared.name for h in held if h.tied} == ({WORDS} if copies else set())
    whole = sum(math.prod(d.local_shape({"tensor": layout.tensor})) for d in own)
    copied = config.model.padded_vocabulary * config.model.hidden // layout.tensor if copies else 0
    assert sum(rank_parameters(config.model, layout, stage) for stage in range(layout.pipeline)) == whole + copied


def _shared_layers() -> list[Declared]:
    """Of a model whose layers are all the first one."""
    found = []
    for d in declared(tiny_config().model):
        first = d.name.replace(f".layers.{d.depth - 1}.", ".layers.0.")
        found.append(d if first == d.name else replace(d, alias_of=first))
    return found


def test_layers_that_are_one_are_held_once() -> None:
    chunks = held_by_chunks(_shared_layers(), [4], 1)
    layers = [h.name for h in chunks[0] if ".layers." in h.name]
    assert len(layers) == 12
    assert all(name.startswith("decoder.layers.0.") for name in layers)


def test_layers_that_are_one_cannot_lie_on_two_stages() -> None:
    with pytest.raises(ConfigError, match=r"decoder\.layers\.2\..* are one parameter on two pipeline stages"):
        held_by_chunks(_shared_layers(), [2, 2], 2)


def test_a_dimension_of_each_axis_is_shared_by_itself() -> None:
    experts = Declared("experts", (8, 6, 4), ("expert", None, "tensor"), Normal((1.0,)), matrix=True)
    assert experts.local_shape({"expert": 4, "tensor": 2}) == (2, 6, 2)
    assert experts.local_shape({"tensor": 2}) == (8, 6, 2)


def test_an_axis_is_said_of_each_dimension() -> None:
    with pytest.raises(AssertionError, match="an axis, or None, for each dimension"):
        Declared("x", (8, 6), ("tensor",), Normal((1.0,)), matrix=True)
