"""Layers of encoder-decoders on pipeline chunks."""

from itertools import combinations, pairwise

import pytest

from pretrain.config.model import Model
from pretrain.model_spec.split import layer_work, split_layers


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
