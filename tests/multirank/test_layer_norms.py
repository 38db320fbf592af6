"""Norms by layer are those of the complete model, the same on every layout, and change no number."""

from typing import Any

import numpy as np
import pytest

from pretrain.engine.megatron.layer_norms import GRADIENT, WEIGHT, layer_of
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, rows, tiny_config, whole_state

STEPS = range(1, 5)
EVERY = 2
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor 2": {"tensor": 2, "sequence": True},
    "pipeline 2": {"pipeline": 2},
    "DeepSpeed's zero 3": {"zero": 3, "zero_engine": "deepspeed"},
}
MORE: dict[str, dict[str, Any]] = {
    "megatron's zero 1": {"zero": 1},
    "data 2": {"zero": 0},
    "context 2": {"context": 2},
    "DeepSpeed's zero 2": {"zero": 2, "zero_engine": "deepspeed"},
}
Measured = tuple[list[tuple[float, float]], list[dict[str, float]], dict[str, float]]
"""(loss, gradient norm) of each step, its figures, and the norms of the weights in the end"""


def _run(parallel: dict[str, Any], every: int, precision: str) -> Measured:
    engine = build_engine(
        tiny_config(
            parallel=parallel, precision=precision, track={"norms_every_steps": every}, optimizer={"clip_norm": 0.5}
        )
    )
    results = [engine.train_step(rows(engine, step), 1e-3, step) for step in STEPS]
    squares: dict[str, float] = {}
    for name, value in whole_state(engine).items():
        kind, _, parameter = name.partition("/")
        if kind == "model":
            layer = f"{WEIGHT}{layer_of(parameter)}"
            squares[layer] = squares.get(layer, 0.0) + float(np.square(value.astype(np.float64)).sum())
    weights = {layer: square**0.5 for layer, square in squares.items()}
    steps = [(result.loss_sum / result.token_count, result.grad_norm) for result in results]
    return steps, [dict(result.figures) for result in results], weights


def _of_layouts(layouts: list[dict[str, Any]], precision: str) -> list[tuple[Measured, Measured]]:
    measured = []
    for number, parallel in enumerate(layouts):
        if number:
            meet_again()
        on = _run(parallel, EVERY, precision)
        meet_again()
        measured.append((on, _run(parallel, 0, precision)))
    return measured


def check(layouts: dict[str, dict[str, Any]], precision: str, tolerance: float) -> None:
    ((reference, without),) = run_ranks(1, _of_layouts, [{}], precision)[0]
    assert reference[0] == without[0]
    ranks = run_ranks(2, _of_layouts, list(layouts.values()), precision, timeout_s=240)
    for name, (on, off), (on_too, _) in zip(layouts, *ranks, strict=True):
        steps, figures, weights = on
        assert steps == off[0], name
        assert off[1] == [{}] * len(STEPS)
        assert figures == on_too[1], f"{name}: ranks differ"
        for step, of_step, expected, (_, norm) in zip(STEPS, figures, reference[1], steps, strict=True):
            assert bool(of_step) == (step % EVERY == 0)
            assert list(of_step) == list(expected)
            np.testing.assert_allclose(list(of_step.values()), list(expected.values()), rtol=tolerance, err_msg=name)
            gradients = [value for key, value in of_step.items() if key.startswith(GRADIENT)]
            if gradients:
                assert norm > 0.5, "it is clipped, and the norms are those before that"
                np.testing.assert_allclose(np.square(gradients).sum() ** 0.5, norm, rtol=1e-6)
        of_weights = {key: value for key, value in figures[-1].items() if key.startswith(WEIGHT)}
        assert of_weights.keys() == weights.keys()
        np.testing.assert_allclose([of_weights[key] for key in weights], list(weights.values()), rtol=1e-6)


def test_norms_are_those_of_the_complete_model() -> None:
    check({"tensor 2": LAYOUTS["tensor 2"]}, "fp32", 1e-5)


@pytest.mark.slow
def test_norms_are_those_of_the_complete_model_on_every_layout_and_in_bf16() -> None:
    check({**LAYOUTS, **MORE}, "fp32", 1e-5)
    check({**LAYOUTS, **MORE}, "bf16", 2e-2)


def test_layers_are_named_by_what_holds_them() -> None:
    assert layer_of("decoder.layers.11.mlp.linear_fc1.weight") == "decoder.layers.11"
    assert layer_of("generator.encoder.layers.0.self_attention.linear_qkv.bias") == "generator.encoder.layers.0"
    assert layer_of("embedding.word_embeddings.weight") == "embedding.word_embeddings"
