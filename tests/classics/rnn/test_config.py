"""What a recurrent model refuses, and its parameters and operations, counted here by the papers' formulas."""

from pathlib import Path
from typing import Any

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.interop.hf.registry import hf_family_of
from pretrain.model_spec.flops import TrainingFlops
from pretrain.model_spec.parameters import num_parameters
from tests.helpers.recurrent import language_model_config, translator_config

CONFIGS = Path(__file__).parents[3] / "configs" / "rnn"


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"parallel": {"tensor": 2}}, "whole state of the step before"),
        ({"parallel": {"context": 2}}, "positions in order"),
        ({"parallel": {"pipeline": 2}}, "stages would exchange states"),
        ({"parallel": {"recompute": "selective"}}, "self-attention"),
        ({"precision": "fp8"}, "half precision"),
        ({"finetune": {"lora": {"rank": 2}}}, "Transformers"),
        ({"model": {"heads": 2}}, "heads=2"),
        ({"model": {"positions": "learned"}}, "use nope"),
    ],
)
def test_what_cells_cannot_do_is_refused_with_its_reason(sections: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        translator_config({"cell": "gru", "score": "general"}, **sections)


@pytest.mark.parametrize(
    ("recurrent", "reason"),
    [
        ({"score": "dot", "encoder_size": 24}, "use general"),
        ({"initial_state": "copy", "encoder_size": 24}, "or use dense"),
        ({"cell": {"name": "gru", "forget_bias": 1.0}}, "forget_bias"),
        ({"score": {"name": "additive", "input_feeding": False}}, "input_feeding"),
    ],
)
def test_sizes_meet_and_settings_do_something(recurrent: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        translator_config({"cell": "lstm", **recurrent})


def test_a_language_model_has_no_settings_of_an_encoder_and_other_families_have_no_cells() -> None:
    with pytest.raises(ValueError, match="encoder_layers=0: leave it out"):
        language_model_config(model={"recurrent": {"cell": "lstm", "score": "dot"}})
    with pytest.raises(ValueError, match=r"set model\.recurrent\.cell"):
        language_model_config(model={"recurrent": None})
    with pytest.raises(ConfigError, match="cannot be exported"):
        hf_family_of(language_model_config().model)


def _cell(gates: int, biases: int, inputs: int, units: int) -> int:
    return gates * units * (inputs + units + biases)


def _linear(inputs: int, outputs: int) -> int:
    return outputs * (inputs + 1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "bahdanau",
            2 * 30000 * 620
            + 2 * _cell(3, 2, 620, 1000)
            + _cell(3, 2, 620 + 2000, 1000)
            + _linear(2000, 1000) * 2  # keys, and the first state
            + 1000 * 1000 + 1000
            + _linear(3000, 620),
        ),
        (
            "luong",
            2 * 50000 * 1000
            + 4 * _cell(4, 1, 1000, 1000)
            + _cell(4, 1, 2000, 1000) + 3 * _cell(4, 1, 1000, 1000)
            + 1000 * 1000
            + _linear(2000, 1000),
        ),
        ("sutskever", 2 * 80000 * 1000 + 8 * _cell(4, 1, 1000, 1000)),
        ("zaremba-medium", 2 * 10000 * 650 + 2 * _cell(4, 1, 650, 650)),
    ],
)  # fmt: skip
def test_published_shapes_have_the_parameters_of_their_formulas(name: str, expected: int) -> None:
    assert num_parameters(load(RunConfig, CONFIGS / f"{name}.yaml").model, padded=False) == expected


def test_operations_are_those_of_every_matrix_at_every_position() -> None:
    model = translator_config({"cell": "lstm", "score": "additive"}).model
    inputs, labels, hidden, width = 7, 5, 24, 16
    encoder = sum(2 * 4 * 12 * (below + 12) for below in (width, hidden))
    decoder = 4 * hidden * (width + hidden + hidden) + 4 * hidden * (hidden + hidden)
    decoder += hidden * hidden + 2 * hidden * width + width * model.output_rows
    once = 4 * hidden * hidden  # the first states of two layers
    keys, pairs = hidden * hidden, 2 * hidden
    expected = inputs * (encoder + keys) + labels * decoder + inputs * labels * pairs + once
    assert TrainingFlops(model).row(inputs, labels) == 6 * expected
