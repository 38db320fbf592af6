"""What is declared of parameters, how they are counted, and where they lie."""

import math
from pathlib import Path

import pytest

from pretrain.config.init import T5Init
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.embeddings import WORD_EMBEDDINGS
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.model_spec.parameters import (
    StageParameter,
    chunk_parameters,
    first_layer_matrix_size,
    num_parameters,
    num_rank_parameters,
    parameters_by_chunk,
)
from tests.helpers.families import FAMILIES, family_config, needs_one_chunk
from tests.helpers.small_configs import small_model as model
from tests.helpers.tiny import tiny_config

_PAGE = Path(__file__).parents[3] / "docs" / "optimizers.md"
_DECAYING_TABLE = (
    "T5's table of\n  relative biases (`relative_attention_bias` in transformers) is one of them and decays"
)


class TestParameters:
    def test_counted_by_hand(self) -> None:
        # qkv 4x12+12, output 4x4+4, feed-forward 4x16+16 and 16x4+4, two norms 8+8, final norm 8, 10 + 8 rows of 4.
        assert num_parameters(model(), padded=False) == 60 + 20 + 80 + 68 + 16 + 8 + 18 * 4

    def test_padding_adds_rows(self) -> None:
        assert num_parameters(model()) - num_parameters(model(), padded=False) == 6 * 4

    def test_an_untied_head_adds_a_second_matrix(self) -> None:
        assert num_parameters(model(tie_word_embeddings=False)) - num_parameters(model()) == 16 * 4

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
        assert first_layer_matrix_size(model()) == 4 * 12 + 4 * 4 + 2 * 4 * 16


def _by_name(config: RunConfig, prefix: str = "") -> dict[str, ParameterSpec]:
    return {d.name: d for d in parameter_specs(config.model, prefix)}


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_and_biases_are_exempt_from_decay_and_no_others(family: str) -> None:
    """Transformer-XL's biases of queries have a row for each head; T5's are a table, of which the page says so."""
    for d in parameter_specs(family_config(family).model):
        assert d.decays == (len(d.shape) > 1 and not d.name.endswith("bias")), d.name
        assert "relative." not in d.name or _DECAYING_TABLE in _PAGE.read_text(), d.name


def test_only_rows_of_the_vocabulary_are_padding() -> None:
    found = _by_name(family_config("bert"))  # of 250, padded to 256
    assert {name for name, d in found.items() if d.padding} == {
        WORD_EMBEDDINGS,
        "output_layer.weight",
        "output_layer.bias",
    }
    assert found["output_layer.bias"].unpadded_shape == (250,)
    assert found[WORD_EMBEDDINGS].unpadded_shape == (250, 64)


def test_a_tied_head_is_an_alias_and_an_untied_one_is_not() -> None:
    assert _by_name(tiny_config())["output_layer.weight"].alias_of == WORD_EMBEDDINGS
    assert _by_name(tiny_config(model={"tie_word_embeddings": False}))["output_layer.weight"].alias_of is None


def test_a_prefix_goes_before_names_and_aliases() -> None:
    plain, prefixed = parameter_specs(tiny_config().model), parameter_specs(tiny_config().model, "generator.")
    assert [d.name for d in prefixed] == [f"generator.{d.name}" for d in plain]
    (alias,) = (d for d in prefixed if d.alias_of)
    assert alias.alias_of == f"generator.{WORD_EMBEDDINGS}"


def test_queries_of_a_group_lie_before_their_keys_and_values() -> None:
    """With 4 queries and 2 keys, 16 wide, the rows are 2 queries, key, value, twice. T5's scheme distinguishes them."""
    unchecked = tiny_config().model.model_copy(update={"kv_heads": 2, "init": T5Init()})
    fused = {d.name: d for d in parameter_specs(unchecked)}["decoder.layers.0.self_attention.linear_qkv.weight"]
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
    if needs_one_chunk(family) and "virtual" in parallel:
        pytest.skip("layers that share parameters lie in one chunk of each stage")
    config = family_config(family, parallel=parallel)
    layout = plan_layout(config, config.parallel.model_ranks)
    held = [h for chunk in chunk_parameters(config.model, layout) for h in chunk]
    own = [h.spec for h in held if not h.copy]
    assert sorted(d.name for d in own) == sorted(d.name for d in parameter_specs(config.model) if d.alias_of is None)
    copies = [h for h in held if h.copy]
    head = {"output_layer.weight"} if config.model.tie_word_embeddings and layout.pipeline > 1 else set()
    stack = "decoder" if config.model.is_causal else "encoder"
    again = {f"{stack}.layers.{4 // layout.pipeline}."} if needs_one_chunk(family) and layout.pipeline > 1 else set()
    assert {h.name for h in copies if h.stages == "ends"} == head
    assert {h.name[: len("encoder.layers.2.")] for h in copies if h.stages == "all"} == again
    assert {h.spec.name for h in held if h.stages != "own"} == {h.spec.name for h in copies}
    whole, copied = (
        sum(math.prod(d.local_shape({"tensor": layout.tensor, "expert_tensor": layout.tensor})) for d in ds)
        for ds in (own, [h.spec for h in copies])
    )
    assert sum(num_rank_parameters(config.model, layout, stage) for stage in range(layout.pipeline)) == whole + copied


SHARED = {"shared_layers": True}


def _layers(held: list[StageParameter]) -> list[StageParameter]:
    return [h for h in held if ".layers." in h.name]


def test_layers_that_are_one_are_held_once_on_each_stage() -> None:
    declarations = parameter_specs(tiny_config(model=SHARED).model)
    (alone,) = parameters_by_chunk(declarations, [4], 1)
    assert len(_layers(alone)) == 12
    assert all(h.name == h.spec.name and h.stages == "own" and not h.copy for h in _layers(alone))
    for stage, held in enumerate(parameters_by_chunk(declarations, [1, 2, 1], 3)):
        first = f"decoder.layers.{(0, 1, 3)[stage]}."
        assert [h.name for h in _layers(held)] == [h.name.replace("decoder.layers.0.", first) for h in _layers(alone)]
        assert [h.spec for h in _layers(held)] == [h.spec for h in _layers(alone)]
        assert {(h.copy, h.stages) for h in _layers(held)} == {(stage > 0, "all")}


def test_layers_that_are_one_are_counted_once() -> None:
    shared, apart = (num_parameters(tiny_config(model=changes).model) for changes in (SHARED, {}))
    layer = sum(d.size for d in parameter_specs(tiny_config().model) if d.depth == 2)
    assert apart - shared == 3 * layer


def test_the_norm_behind_the_last_layer_is_of_no_layer() -> None:
    names = {d.name for d in parameter_specs(family_config("llama", model=SHARED).model) if d.alias_of is None}
    assert "decoder.layers.3.final.norm.weight" in names


def test_what_some_stages_only_share_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"encoder\.layers\.0\..* is shared by 2 pipeline chunks on 3 stages"):
        parameters_by_chunk(parameter_specs(family_config("t5", model=SHARED).model), [1, 1, 2], 3)


def test_a_dimension_of_each_axis_is_shared_by_itself() -> None:
    experts = ParameterSpec(
        name="experts", shape=(8, 6, 4), axes=("expert", None, "expert_tensor"), init=Normal((1.0,)), is_matrix=True
    )
    assert experts.local_shape({"expert": 4, "tensor": 2, "expert_tensor": 2}) == (2, 6, 2)
    assert experts.local_shape({"expert": 4, "tensor": 2, "expert_tensor": 1}) == (2, 6, 4)
    assert experts.local_shape({"expert_tensor": 2}) == (8, 6, 2)


def test_an_axis_is_said_of_each_dimension() -> None:
    with pytest.raises(AssertionError, match="an axis, or None, for each dimension"):
        ParameterSpec(name="x", shape=(8, 6), axes=("tensor",), init=Normal((1.0,)), is_matrix=True)
