"""Sizes of layers' outputs are those of the global batch, the same on every layout, and change no number."""

from typing import Any

import numpy as np
import pytest

from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.base import Stack
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.megatron.layer_outputs import LARGEST, RMS
from pretrain.engine.megatron.micro_batches import real_positions
from tests.helpers.families import family_config
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import ROWS, build_engine

STEPS = range(1, 5)
EVERY = 2
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor and sequence 2": {"tensor": 2, "sequence": True},
    "pipeline 2, recomputed": {"pipeline": 2, "recompute": "full"},
}
MORE: dict[str, dict[str, Any]] = {
    "tensor 2": {"tensor": 2},
    "data 2": {"zero": 0},
    "context 2": {"context": 2},
    "virtual 2": {"pipeline": 2, "virtual": 2},
    "DeepSpeed's zero 3": {"zero": 3, "zero_engine": "deepspeed"},
    "selective": {"recompute": "selective"},
}
FAMILIES = ("llama", "bert", "t5", "bloom", "xlnet")
Run = tuple[list[tuple[float, float]], list[dict[str, float]]]
"""(loss, gradient norm) of each step, and its figures"""


def _train(family: str, parallel: dict[str, Any], every: int, precision: str) -> Run:
    track = {"activations_every_steps": every}
    engine = build_engine(family_config(family, parallel=parallel, precision=precision, track=track))
    source = SyntheticStream(engine.config)
    results = [
        engine.train_step(source.batch((step - 1) * ROWS, ROWS, engine.data_rank, engine.data_world), 1e-3, step)
        for step in STEPS
    ]
    steps = [(result.loss_sum / result.token_count, result.grad_norm) for result in results]
    return steps, [dict(result.figures) for result in results]


def _of_layouts(family: str, layouts: list[dict[str, Any]], precision: str) -> list[tuple[Run, Run]]:
    found = []
    for number, parallel in enumerate(layouts):
        if number:
            meet_again()
        measured = _train(family, parallel, EVERY, precision)
        meet_again()
        found.append((measured, _train(family, parallel, 0, precision)))
    return found


def check(family: str, layouts: dict[str, dict[str, Any]], precision: str, tolerance: float) -> None:
    ((reference, _),) = run_ranks(1, _of_layouts, family, [{}], precision)[0]
    ranks = run_ranks(2, _of_layouts, family, list(layouts.values()), precision, timeout_s=240)
    for name, (measured, plain), (measured_too, _) in zip(layouts, *ranks, strict=True):
        steps, figures = measured
        assert steps == plain[0], f"{name}: numbers of the run changed"
        assert plain[1] == [{}] * len(STEPS)
        assert figures == measured_too[1], f"{name}: ranks differ"
        for step, of_step, expected in zip(STEPS, figures, reference[1], strict=True):
            assert bool(of_step) == (step % EVERY == 0)
            assert list(of_step) == list(expected)
            np.testing.assert_allclose(list(of_step.values()), list(expected.values()), rtol=tolerance, err_msg=name)


def test_outputs_are_those_of_the_global_batch() -> None:
    check("llama", LAYOUTS, "fp32", 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "family"), enumerate(FAMILIES), ids=FAMILIES)
def test_outputs_are_those_of_the_global_batch_on_every_layout_and_in_bf16(number: int, family: str) -> None:
    """In fp32 on half of the layouts, in bf16 on the others; the next family the other way round."""
    layouts = list((LAYOUTS | MORE).items())
    check(family, dict(layouts[number % 2 :: 2]), "fp32", 1e-4)
    check(family, dict(layouts[(number + 1) % 2 :: 2]), "bf16", 5e-2)


def _beside_hidden_states(family: str) -> tuple[dict[str, float], dict[str, float]]:
    """The figures of a first step, and what those of its last stack are by the states that features are made of."""
    engine = build_engine(family_config(family, track={"activations_every_steps": 1}))
    batch = SyntheticStream(engine.config).batch(0, ROWS, 0, 1)
    encoder, decoder = engine.config.model.stacks
    expected: dict[str, tuple[float, float]] = {}
    if not decoder:
        assert batch.attention_mask is not None
        expected |= _sizes(engine, batch, "encoder", encoder, batch.attention_mask > 0)
    if decoder:
        expected |= _sizes(engine, batch, "decoder", decoder, real_positions(batch))
    figures = dict(engine.train_step(batch, 1e-3, 1).figures)
    sizes = [
        {f"{prefix}{layer}": of_layer[n] for layer, of_layer in expected.items()}
        for n, prefix in enumerate((RMS, LARGEST))
    ]
    return figures, sizes[0] | sizes[1]


def _sizes(
    engine: MegatronEngine, batch: Any, stack: Stack, layers: int, counted: np.ndarray
) -> dict[str, tuple[float, float]]:
    states = engine.hidden_states(batch, stack, range(1, layers + 1), False).astype(np.float64)
    found = {}
    for number in range(layers):
        of_layer = states[:, :, number][counted]
        found[f"{stack}.layers.{number}"] = float(np.square(of_layer).mean() ** 0.5), float(np.abs(of_layer).max())
    return found


@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
def test_they_are_sizes_of_the_hidden_states_without_padding(family: str) -> None:
    ((figures, expected),) = run_ranks(1, _beside_hidden_states, family)
    stacks = {"llama": {"decoder"}, "bert": {"encoder"}, "t5": {"encoder", "decoder"}}[family]
    assert {key.split("/")[1].split(".")[0] for key in figures} == stacks
    assert len(expected) >= 2 * 2, "each layer of the last stack"
    np.testing.assert_allclose([figures[key] for key in expected], list(expected.values()), rtol=1e-5)
