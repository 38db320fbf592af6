"""Layers on pipeline chunks."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from pretrain.config.load import load
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.model_spec.split import balanced_layers, beside_last_layer, chunk_layers, layer_work, split_layers

PUBLISHED = ("qwen3-moe/235b-a22b", "deepseek-v3/671b")


def _model(encoder: int, decoder: int, inputs: int = 64, targets: int = 64, **more: object) -> Model:
    values = {
        "family": "t5", "layers": decoder, "encoder_layers": encoder, "hidden": 64, "heads": 4, "vocabulary": 1000,
        "sequence_length": inputs, "target_length": targets, "norm_type": "rms", "positions": "relative",
    }  # fmt: skip
    return Model.model_validate(values | more)


MODELS = [_model(4, 4), _model(6, 3, 128, 32), _model(2, 7, 512, 114), _model(5, 5, vocabulary=50_000)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
def test_no_other_split_has_less_work_in_its_largest_chunk(model: Model, chunks: int) -> None:
    work = layer_work(model)
    counts = split_layers(model, chunks)
    assert len(counts) == chunks
    assert sum(counts) == len(work)
    assert min(counts) >= 1

    def largest(borders: tuple[int, ...]) -> int:
        edges = (0, *borders, len(work))
        return max(sum(work[a:b]) for a, b in pairwise(edges))

    borders = tuple(sum(counts[:index]) for index in range(1, chunks))
    assert largest(borders) == min(map(largest, combinations(range(1, len(work)), chunks - 1)))


def test_short_targets_bring_encoder_layers_to_the_second_stage() -> None:
    counts = split_layers(_model(12, 12, 512, 64, vocabulary=128), 2)
    assert counts[0] < 12, "two stages of 12 would have unequal work: the second gets encoder layers, too"


def test_every_layer_alone_is_the_only_split_into_as_many_chunks() -> None:
    assert split_layers(_model(2, 2), 4) == [1, 1, 1, 1]


def test_hundreds_of_layers_are_split_at_once() -> None:
    """Trying every number of layers of every chunk would take hours."""
    counts = split_layers(_model(300, 300), 48)
    assert sum(counts) == 600
    assert len(counts) == 48


@pytest.mark.parametrize("layers", [7, 12, 13, 29])
@pytest.mark.parametrize(("pipeline", "virtual"), [(2, 1), (3, 2), (4, 1)])
@pytest.mark.parametrize("beside", [0.0, 0.4, 2.5, 9.0])
def test_no_other_stages_have_less_work_in_the_largest(layers: int, pipeline: int, virtual: int, beside: float) -> None:
    """The last one has work besides. Stages before it differ by a layer at most, and so do chunks of a stage."""
    counts = np.array(balanced_layers(layers, pipeline, virtual, beside)).reshape(virtual, pipeline)
    stages = counts.sum(0)
    assert counts.sum() == layers
    assert counts.min() >= 1
    assert np.ptp(counts, axis=0).max() <= 1
    assert 0 <= stages[-2] - stages[0] <= 1
    lasts = range(virtual, layers - virtual * (pipeline - 1) + 1)
    least = min(max(last + beside, -(-(layers - last) // (pipeline - 1))) for last in lasts)
    assert max(stages[-1] + beside, stages[:-1].max()) == least


def _shipped(name: str, *overrides: str) -> Model:
    return load(RunConfig, name, ["run.dir=x", "data.path=x", *overrides]).model


def test_layers_that_divide_stay_equal_but_beside_modules_for_further_tokens() -> None:
    gpt = _shipped("gpt3/1.3b")
    assert chunk_layers(gpt, 4, 2) == [3] * 8
    assert beside_last_layer(gpt) > 1
    assert chunk_layers(gpt, 5) == [5, 5, 5, 5, 4]
    mtp = "model.mtp={num_layers: 1}"
    assert chunk_layers(_shipped("llama2/7b", "model.layers=33", mtp), 4) == [9, 9, 9, 6]
    assert chunk_layers(_shipped("llama2/7b", mtp), 4) == [8, 9, 9, 6]


def test_published_layers_that_do_not_divide() -> None:
    """94 and 61 layers in 8 stages of 4 chunks, where the head is as much work as 2.4 and 1.4 layers."""
    qwen, deepseek = (
        np.array(chunk_layers(_shipped(name, "model.mtp=null"), 8, 4)).reshape(4, 8) for name in PUBLISHED
    )
    assert qwen.sum(0).tolist() == [12] * 7 + [10]
    assert deepseek.sum(0).tolist() == [7, *[8] * 6, 6]
    further = chunk_layers(_shipped("deepseek-v3/671b"), 8, 4)
    assert np.array(further).reshape(4, 8).sum(0).tolist() == [8] * 7 + [5], "a layer and a head more"
