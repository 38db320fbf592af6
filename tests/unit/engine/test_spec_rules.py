"""Optimizers heed what is declared of parameters, not their shapes or names."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from pretrain.config.model import Model
from pretrain.config.optimizer import AdafactorOptimizer
from pretrain.engine.optimizer.adafactor import Adafactor
from pretrain.engine.optimizer.base import Owned
from pretrain.engine.optimizer.totals import ReplicaGroups
from pretrain.model_spec import parameters
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.models.placement import Parameter
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, tiny_config, train, whole, whole_state

KEPT = "decoder.layers.1.mlp.linear_fc1.weight"


def _moved(name: str, zero: int, engine: str) -> tuple[float, float]:
    """How far a large weight decay alone pulls weights in a step: of a matrix that is declared not to decay, and of
    another."""

    def without_decay(model: Model) -> list[ParameterSpec]:
        return [replace(d, is_matrix=False) if d.name == KEPT else d for d in parameter_specs(model)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameters, "parameter_specs", without_decay)
        built = build_engine(
            tiny_config(
                optimizer={"name": name, "learning_rate": 1e-6, "weight_decay": 1e5},
                parallel={"zero": zero, "zero_engine": engine},
            )
        )
        before = {key: part.pieces[0].value.clone() for key, part in built.state().items() if key.startswith("model/")}
        train(built, range(1, 2))
        after = {key: part.pieces[0].value for key, part in built.state().items() if key.startswith("model/")}
        moved = {key: float((after[key] - value).norm() / value.norm()) for key, value in before.items()}
        return moved[f"model/{KEPT}"], moved["model/decoder.layers.2.mlp.linear_fc1.weight"]


@pytest.mark.parametrize(
    ("name", "zero", "engine"),
    [("adamw", 0, "megatron"), ("adamw", 1, "deepspeed"), ("adafactor", 0, "megatron")],
)
def test_what_is_declared_not_to_decay_does_not(name: str, zero: int, engine: str) -> None:
    ((kept, other),) = run_ranks(1, _moved, name, zero, engine)
    assert kept < 1e-3
    assert other == pytest.approx(0.1, rel=0.01)


def _multiplied(name: str, zero: int, engine: str) -> dict[str, np.ndarray]:
    """Weights before and after a step, and its gradient, of a matrix with multipliers of its own."""

    def with_multipliers(model: Model) -> list[ParameterSpec]:
        multipliers = {"lr_mult": 0.5, "wd_mult": 8.0, "eps_mult": 1e5}
        return [replace(d, **multipliers) if d.name == KEPT else d for d in parameter_specs(model)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameters, "parameter_specs", with_multipliers)
        built = build_engine(tiny_config(optimizer=MULTIPLIED[name], parallel={"zero": zero, "zero_engine": engine}))
        built.keeps_gradients = True
        before = whole_state(built)[f"model/{KEPT}"]
        train(built, range(1, 2))
        found = {"before": before, "after": whole_state(built)[f"model/{KEPT}"]}
        return {**found, "gradient": whole(built.gradients())[f"gradient/{KEPT}"]}


MULTIPLIED: dict[str, dict[str, Any]] = {
    "adamw": {"name": "adamw", "learning_rate": 0.01, "weight_decay": 1.0, "eps": 1e-8},
    "adagrad": {"name": "adagrad", "learning_rate": 0.01, "weight_decay": 1.0, "eps": 1e-8},
}


@pytest.mark.parametrize(
    ("name", "zero", "engine"),
    [
        ("adamw", 0, "megatron"),
        ("adamw", 1, "deepspeed"),
        ("adamw", 3, "deepspeed"),
        ("adagrad", 0, "megatron"),
        ("adagrad", 2, "deepspeed"),
    ],
)
def test_multipliers_of_a_parameter_reach_its_update(name: str, zero: int, engine: str) -> None:
    """A first step, in which Adam's quotient of moments is g / |g|."""
    (found,) = run_ranks(1, _multiplied, name, zero, engine)
    w, g = found["before"].astype(np.float64), found["gradient"].astype(np.float64)
    root = np.abs(g) if name == "adamw" else np.sqrt(0.1 + g**2)
    wanted = w * (1 - 0.005 * 8.0) - 0.005 * g / (root + 1e-3)
    np.testing.assert_allclose(found["after"], wanted, rtol=0, atol=2e-8)
    assert np.abs(g / (np.abs(g) + 1e-3)).mean() < 0.9, "eps shows"


def test_lamb_moves_matrices_by_the_learning_rate_and_nothing_else() -> None:
    ((other_than_matrix, matrix),) = run_ranks(1, _moved, "lamb", 0, "megatron")
    assert matrix == pytest.approx(1e-6, rel=0.05)
    assert other_than_matrix > 1e-5


def _factors(shape: tuple[int, ...], cuts: list[int]) -> dict[str, np.ndarray]:
    """Adafactor's moments of rows and columns of one parameter, owned in ranges, after two steps."""
    value = nn.Parameter(torch.zeros(shape))
    declaration = ParameterSpec(name="x", shape=shape, axes=(None,) * len(shape), init=Normal((1.0,)), is_matrix=True)
    parameter = Parameter(
        spec=declaration,
        value=value,
        local_shape=shape,
        offset=(0,) * len(shape),
        copy=False,
        stages="own",
        primary=True,
    )
    groups: Any = SimpleNamespace(tensor_group=dist.group.WORLD, stage_group=dist.group.WORLD)
    replica_groups = ReplicaGroups([parameter], groups, torch.device("cpu"), replicated=False, offloads=False)
    rule = Adafactor(AdafactorOptimizer(learning_rate=1.0), replica_groups)
    weights = torch.ones(declaration.size)
    spans = list(zip([0, *cuts], [*cuts, declaration.size], strict=True))
    for step in range(2):
        gradient = torch.arange(1.0, declaration.size + 1) + 10 * step
        owned = [Owned(value, start, weights[start:end], {}) for start, end in spans]
        rule.update(owned, [gradient[start:end] for start, end in spans], 0.1, {})
    ((_, factors),) = rule.factors()
    return {kind: x.numpy() for kind, x in {**factors, "weights": weights.view(shape)}.items()}


def _many() -> list[dict[str, np.ndarray]]:
    return [_factors((3, 4), []), _factors((1, 3, 4), []), _factors((2, 3, 4), []), _factors((2, 3, 4), [5, 6, 19])]


def test_adafactor_factors_the_last_two_dimensions_however_a_parameter_is_cut() -> None:
    ((flat, alone, pair, cut),) = run_ranks(1, _many)
    assert {kind: tuple(x.shape) for kind, x in pair.items()} == {
        "exp_avg_sq_row": (2, 3), "exp_avg_sq_col": (2, 4), "weights": (2, 3, 4),
    }  # fmt: skip
    for kind, value in flat.items():
        np.testing.assert_allclose(alone[kind][0], value, rtol=1e-6)
        if kind != "weights":  # which move by the size of the whole update
            np.testing.assert_allclose(pair[kind][0], value, rtol=1e-6)
        np.testing.assert_allclose(cut[kind], pair[kind], rtol=1e-6)
