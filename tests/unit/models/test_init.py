"""Initial values depend on the declaration, the seed and the position, and on nothing else."""

import hashlib
import math

import numpy as np
import pytest
import torch

from pretrain.config.init import NormalInit
from pretrain.config.model import Model
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameter_spec import Constant, Normal, ParameterSpec
from pretrain.random import init
from pretrain.random.init import initial_values, normal
from tests.helpers.families import FAMILIES, family_config

MODEL = Model(layers=8, hidden=64, heads=4, sequence_length=32, vocabulary=256)
NAME, SHAPE = "decoder.layers.3.mlp.linear_fc1.weight", (61, 37)
COUNT = math.prod(SHAPE)
PINNED_VALUES = [-0.011891658417880535, -0.017118260264396667, 0.01038883626461029]
PINNED_DIGEST = "d8063e67010758b3"


@pytest.fixture(scope="module")
def whole() -> torch.Tensor:
    return normal(7, NAME, SHAPE, 0, COUNT)


def test_any_slice_equals_the_same_part_of_the_whole(whole: torch.Tensor) -> None:
    random = np.random.default_rng(0)
    ends = [(0, 0), (0, 1), (3, 6), (4, 8), (COUNT - 1, COUNT), *np.sort(random.integers(0, COUNT, (200, 2)))]
    for start, end in ends:
        part = normal(7, NAME, SHAPE, int(start), int(end - start))
        assert torch.equal(part, whole[start:end]), (start, end)


@pytest.mark.parametrize("chunk", [1, 4, 7, 1000])
def test_values_do_not_depend_on_how_many_are_made_at_a_time(
    chunk: int, whole: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "_CHUNK", chunk)
    assert torch.equal(normal(7, NAME, SHAPE, 5, 300), whole[5:305])


def test_values_far_into_a_large_parameter_are_reached_directly() -> None:
    """Past 2^33 values: as many as an embedding of the largest models has."""
    shape, start = (2**21, 2**13), 2**33 + 5
    assert torch.equal(normal(7, NAME, shape, start - 5, 10)[5:], normal(7, NAME, shape, start, 5))


@pytest.mark.parametrize(
    ("seed", "name", "shape"),
    [(8, NAME, SHAPE), (7, NAME.replace("3", "4"), SHAPE), (7, NAME, SHAPE[::-1])],
    ids=["seed", "name", "shape"],
)
def test_other_values_for_another(seed: int, name: str, shape: tuple[int, int], whole: torch.Tensor) -> None:
    other = normal(seed, name, shape, 0, COUNT)
    correlation = torch.corrcoef(torch.stack([whole, other]))[0, 1]
    assert abs(correlation) < 4 / math.sqrt(COUNT), "independent: within four standard errors of zero"


def test_values_are_normal() -> None:
    count = 1 << 20
    values = normal(1, "x.weight", (1024, 1024), 0, count).double()
    moments = [(values**power).mean().item() for power in (1, 2, 3, 4)]
    errors = [math.sqrt(variance / count) for variance in (1, 2, 15, 96)]  # of each moment of a standard normal
    for moment, expected, error in zip(moments, (0, 1, 0, 3), errors, strict=True):
        assert abs(moment - expected) < 4 * error
    correlation = (values[:-1] * values[1:]).mean().item()
    assert abs(correlation) < 4 / math.sqrt(count), "neighbours are independent"
    assert 4.5 < values.abs().max().item() < 6.5, "one in a million lies 4.9 deviations out"


def _of(model: Model, name: str) -> ParameterSpec:
    return next(d for d in parameter_specs(model) if d.name == name)


def _deviation(model: Model, name: str) -> float:
    init = _of(model, name).init
    assert isinstance(init, Normal)
    (deviation,) = init.deviations
    return deviation


def test_constants_are_as_declared() -> None:
    for value in (0.0, 1.0, 0.5):
        vector = ParameterSpec(name="x", shape=(64,), axes=(None,), init=Constant(value), is_matrix=False)
        assert torch.equal(initial_values(vector, 7, 3, 9), torch.full((9,), value))


@pytest.mark.parametrize("family", FAMILIES)
def test_biases_begin_as_zeros_and_gains_of_norms_as_ones(family: str) -> None:
    """Transformer-XL's biases of queries, with a row for each head, are drawn as matrices are, by its authors, and
    Monarch Mixer's weights of positions themselves, whose frequencies are a setting."""
    model = family_config(family).model
    kept = 0.0 if model.norm_type == "rms_zero_centered" else 1.0  # the gain, or what it is more than one
    for d in parameter_specs(model):
        if not d.is_matrix and len(d.shape) == 1 and not d.name.endswith(("filter.frequency", "filter.skip")):
            assert d.init == Constant(0.0 if d.name.endswith("bias") else kept), d.name


def test_normal_values_are_scaled_by_their_deviation() -> None:
    matrix = ParameterSpec(name=NAME, shape=SHAPE, axes=(None, None), init=Normal((0.25,)), is_matrix=True)
    assert torch.equal(initial_values(matrix, 7, 5, 300), normal(7, NAME, SHAPE, 5, 300) * 0.25)


def test_blocks_of_rows_take_their_deviations_in_turn() -> None:
    """The 61 rows have deviations 1, 2 and 3, four rows each in turn, from any position."""
    matrix = ParameterSpec(
        name=NAME, shape=SHAPE, axes=(None, None), init=Normal((1.0, 2.0, 3.0), rows=4), is_matrix=True
    )
    scale = torch.tensor([1.0, 2.0, 3.0]).repeat_interleave(4).repeat(6)[: SHAPE[0], None]
    expected = (normal(7, NAME, SHAPE, 0, COUNT).view(SHAPE) * scale).flatten()
    assert torch.equal(initial_values(matrix, 7, 0, COUNT), expected)
    assert torch.equal(initial_values(matrix, 7, 1234, 777), expected[1234:2011])


@pytest.mark.parametrize(
    ("name", "scaled"),
    [
        ("decoder.layers.0.self_attention.linear_proj.weight", True),
        ("decoder.layers.7.mlp.linear_fc2.weight", True),
        ("decoder.layers.0.self_attention.linear_qkv.weight", False),
        ("decoder.layers.0.mlp.linear_fc1.weight", False),
        ("embedding.word_embeddings.weight", False),
        ("embedding.position_embeddings.weight", False),
        ("output_layer.weight", False),
    ],
)
@pytest.mark.parametrize("option", [True, False])
def test_only_projections_into_the_residual_stream_are_scaled(name: str, scaled: bool, option: bool) -> None:
    model = MODEL.model_copy(update={"init": NormalInit(scale_residual=option)})
    assert _deviation(model, name) == (0.02 / math.sqrt(2 * 8) if scaled and option else 0.02)


def test_t5_divides_by_the_root_of_the_inputs() -> None:
    """Width 64, 4 heads of 8, feed-forward 256; queries of both attentions by the root of the head's width too."""
    model = family_config("t5v1.1").model
    layer, query = "decoder.layers.0", (64 * 8) ** -0.5
    qkv = _of(model, f"{layer}.self_attention.linear_qkv.weight").init
    assert qkv == Normal((query, 64**-0.5, 64**-0.5), rows=8)
    assert _deviation(model, f"{layer}.cross_attention.linear_q.weight") == query
    assert _deviation(model, f"{layer}.cross_attention.linear_kv.weight") == 64**-0.5
    assert _deviation(model, f"{layer}.self_attention.linear_proj.weight") == 32**-0.5
    assert _deviation(model, f"{layer}.mlp.linear_fc2.weight") == 256**-0.5
    assert _deviation(model, "embedding.word_embeddings.weight") == 1
    assert _deviation(model, "embedding.relative.encoder") == _deviation(model, "output_layer.weight") == 64**-0.5


def test_xavier_counts_inputs_and_outputs_of_each_projection() -> None:
    model = family_config("transformer").model  # width 64, feed-forward 256
    layer = "decoder.layers.0"
    for name in ("self_attention.linear_qkv", "cross_attention.linear_kv", "self_attention.linear_proj"):
        assert _deviation(model, f"{layer}.{name}.weight") == math.sqrt(2 / 128)
    assert _deviation(model, f"{layer}.mlp.linear_fc1.weight") == math.sqrt(2 / 320)
    assert _deviation(model, "embedding.word_embeddings.weight") == 1 / 8


def test_values_are_those_of_every_earlier_version() -> None:
    """A pinned digest: another one would change every run that is started anew from a seed. Rounded, since the last
    digit of the inverse normal distribution is the library's affair."""
    matrix = ParameterSpec(
        name=NAME, shape=SHAPE, axes=("tensor", None), init=Normal((MODEL.init_std,)), is_matrix=True
    )
    values = initial_values(matrix, 1234, 100, 1000)
    assert values[:3].tolist() == pytest.approx(PINNED_VALUES, abs=1e-7)
    rounded = np.round(values.double().numpy() / 0.02, 3).astype("<f4") + 0.0  # no negative zeros
    assert hashlib.sha256(rounded.tobytes()).hexdigest()[:16] == PINNED_DIGEST
