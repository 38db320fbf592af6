"""DeBERTa's configs: what they refuse, and how large the published models are."""

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.model_spec.parameters import num_parameters


@pytest.mark.parametrize(
    ("config", "override", "message"),
    [
        ("deberta", "model.embedding_size=8", "is for the bert or roberta or roformer or electra or albert family"),
        ("bert", "model.mask_decoder_layers=2", "is for the deberta or deberta_v2 family"),
        ("deberta", "model.convolution=gelu", "is for the deberta_v2 family"),
        ("deberta-v3", "model.convolution=gelu", None),
        ("deberta-v3", ["model.convolution=tanh", "model.layers=1", "generator.layers=1"], "would apply again with"),
        ("deberta", "model.positions=learned", "is not in the deberta family: use disentangled"),
        ("deberta", "model.positions.num_buckets=9", "must be even, and model.positions.max_distance=64 more than"),
        ("deberta", "objective={name: tlm}", "uses distances in the row"),
    ],
)
def test_what_does_not_go_together_is_refused(config: str, override: str | list[str], message: str | None) -> None:
    overrides = [override] if isinstance(override, str) else override
    if message is None:
        load(RunConfig, f"debug/{config}", overrides)
        return
    with pytest.raises(ConfigError, match=message):
        load(RunConfig, f"debug/{config}", overrides)


# Elements of transformers' DebertaForMaskedLM, which has no embeddings of absolute positions. The paper has 134 million
# for base.
@pytest.mark.parametrize(("size", "parameters"), [("base", 139_244_121), ("large", 406_264_921)])
def test_deberta_has_the_size_of_transformers_own_and_positions_for_its_mask_decoder(
    size: str, parameters: int
) -> None:
    model = load(RunConfig, f"deberta/{size}").model
    assert num_parameters(model, padded=False) == parameters + model.sequence_length * model.hidden
    without = model.model_copy(update={"mask_decoder_layers": 0})
    assert num_parameters(without, padded=False) == parameters


# Elements of transformers' DebertaV2ForMaskedLM. The authors have 900 million and 1.5 billion.
@pytest.mark.parametrize(("size", "parameters"), [("xlarge", 887_085_156), ("xxlarge", 1_567_041_636)])
def test_deberta_v2_has_the_size_of_transformers_own_and_positions_for_its_mask_decoder(
    size: str, parameters: int
) -> None:
    model = load(RunConfig, f"deberta-v2/{size}").model
    assert num_parameters(model, padded=False) == parameters + model.sequence_length * model.hidden
    without = model.model_copy(update={"convolution": None, "mask_decoder_layers": 0})
    kernel_and_norm = (3 * model.hidden + 1) * model.hidden + 2 * model.hidden
    assert num_parameters(without, padded=False) == parameters - kernel_and_norm


# Elements of transformers' DebertaV2Model, and the paper's millions, which are those of DebertaV2ForMaskedLM without
# token embeddings.
@pytest.mark.parametrize(
    ("size", "parameters", "millions"),
    [
        ("xsmall", 70_682_112, 22), ("small", 141_304_320, 44), ("base", 183_831_552, 86), ("large", 434_012_160, 304),
    ],
)  # fmt: skip
def test_deberta_v3_has_the_size_of_transformers_encoder_and_a_detector(
    size: str, parameters: int, millions: int
) -> None:
    config = load(RunConfig, f"deberta-v3/{size}")
    model, generator = config.model, config.generator_model
    assert generator is not None
    assert 2 * generator.layers == model.layers
    detector = 2 * model.hidden + (model.hidden + 1) * model.hidden + model.hidden + 1
    assert num_parameters(model, padded=False) == parameters + detector
    masked = model.model_copy(update={"task_head": None, "mask_decoder_layers": 0})
    assert round((num_parameters(masked, padded=False) - model.vocab_size * model.hidden) / 1e6) == millions
