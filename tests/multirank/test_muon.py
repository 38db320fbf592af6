"""Muon on many layouts and every ZeRO stage: updates are those of one rank, as far as gradients are.

The model has fewer KV heads than the largest number of tensor ranks, and gated feed-forwards, so that blocks of rows
are cut in many ways. A few cells are tried with every test run, all of them with `make test-slow`.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, product
from typing import Any

import numpy as np
import pytest
import torch

from pretrain.config.run_config import RunConfig
from pretrain.verify.observation import TensorShard
from pretrain.verify.orthogonalized import Amplification
from tests.helpers.breadth import slow
from tests.helpers.families import FAMILIES
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, tiny_config, train, whole, whole_state

STEPS = 8
MODEL = {"kv_heads": 2, "activation": "gated_silu"}
EXPERTS = FAMILIES["mixtral"]["model"] | {"experts": {"count": 4, "top_k": 2}}
OPTIMIZER = {"name": "muon", "learning_rate": 2e-3, "weight_decay": 0.1}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tp2": (2, {"tensor": 2}),
    "tp4": (4, {"tensor": 4}),
    "tp2+sp": (2, {"tensor": 2, "sequence": True}),
    "cp2": (2, {"context": 2}),
    "pp2": (2, {"pipeline": 2}),
    "pp2+vp2": (2, {"pipeline": 2, "virtual": 2}),
    "dp2": (2, {}),
    "dp4": (4, {}),
    "tp2dp2": (4, {"tensor": 2}),
    "tp2cp2": (4, {"tensor": 2, "context": 2}),
    "cp2dp2": (4, {"context": 2}),
    "pp2dp2": (4, {"pipeline": 2}),
    "tp2pp2dp2": (8, {"tensor": 2, "pipeline": 2}),
}
OF_EXPERTS: dict[str, tuple[int, dict[str, Any]]] = {
    "ep2": (2, {"expert": 2}),
    "ep2dp4": (4, {"expert": 2}),
    "ep4": (4, {"expert": 4}),
    "tp2ep2+sp": (4, {"expert": 2, "tensor": 2, "sequence": True}),
    "cp2ep2": (2, {"expert": 2, "context": 2}),
    "ep2pp2+vp2": (4, {"expert": 2, "pipeline": 2, "virtual": 2}),
    "tp2ep4etp1+sp": (4, {"expert": 4, "tensor": 2, "expert_tensor": 1, "sequence": True}),
    "tp2ep2etp1": (4, {"expert": 2, "tensor": 2, "expert_tensor": 1}),
    "tp2etp1": (4, {"tensor": 2, "expert_tensor": 1}),
    "tp2ep2dp4": (8, {"expert": 2, "tensor": 2}),
}
ZERO: dict[str, dict[str, Any]] = {
    "zero 0": {"zero": 0},
    "zero 1": {"zero": 1},
    "DeepSpeed's zero 1": {"zero": 1, "zero_engine": "deepspeed"},
    "zero 2": {"zero": 2, "zero_engine": "deepspeed"},
    "zero 3": {"zero": 3, "zero_engine": "deepspeed"},
}
Cell = tuple[str, str]
QUICK: list[Cell] = [("tp4", "zero 0")]
IN_PARTS = {"ns_precision": "bf16x3", "ns_coefficients": "polar_express"}


def _half(layouts: Iterable[str], zero: Iterable[str]) -> list[Cell]:
    """Each layout with every other kind of sharding, the next one with the others."""
    kinds = list(zero)
    return [(layout, kind) for number, layout in enumerate(layouts) for kind in kinds[number % 2 :: 2]]


ALL = _half(LAYOUTS, ZERO)


def _config(parallel: dict[str, Any], model: dict[str, Any], **more: Any) -> RunConfig:
    return tiny_config(optimizer=OPTIMIZER | more, model=model, parallel=parallel)


def _runs(
    parallels: list[dict[str, Any]], model: dict[str, Any] = MODEL, more: dict[str, Any] | None = None
) -> list[Any]:
    """Returns the losses of each run, with its weights and gradients after each step."""
    found = []
    for parallel in parallels:
        engine = build_engine(_config(parallel, model, **(more or {})))
        engine.keeps_gradients = True
        losses, weights, gradients = [], [whole_state(engine)], []
        for step in range(STEPS):
            losses += [loss for loss, _ in train(engine, range(step, step + 1))]
            weights.append(whole_state(engine))
            gradients.append(whole(engine.gradients()))
        found.append((losses, weights, gradients))
        meet_again()
    return found


def _departures(
    found: Any, expected: Any, model: dict[str, Any], more: dict[str, Any]
) -> Iterator[tuple[str, float, float]]:
    """Yields how far each update of a matrix is from the expected one, relative to it, and how far it may be."""
    amplification, rate = Amplification(_config({}, model, **more)), OPTIMIZER["learning_rate"]
    (_, weights, gradients), (_, expected_weights, expected_gradients) = found, expected
    for step in range(STEPS):
        ours, theirs = (
            {name.removeprefix("gradient/"): value for name, value in one[step].items()}
            for one in (gradients, expected_gradients)
        )
        shards = [TensorShard(0, name, (0,) * value.ndim, value) for name, value in ours.items()]
        amplification.add(theirs, shards)
        for name in (name for name in theirs if name in amplification):
            update, expected_update = (
                one[step + 1][f"model/{name}"].astype(np.float64) - one[step][f"model/{name}"]
                for one in (weights, expected_weights)
            )
            size = float(np.linalg.norm(expected_update))
            explained = amplification.explained(name, rate)
            yield name, float(np.linalg.norm(update - expected_update)) / size, max(1e-3, explained / size)


def _check(cells: list[Cell], model: dict[str, Any] = MODEL, **more: Any) -> None:
    (expected,) = run_ranks(1, _runs, [{}], model, more, timeout_s=600)[0]
    layouts = LAYOUTS | OF_EXPERTS
    for world, together in groupby(sorted(cells, key=lambda cell: layouts[cell[0]][0]), lambda c: layouts[c[0]][0]):
        names = list(together)
        parallels = [layouts[layout][1] | ZERO[zero] for layout, zero in names]
        for cell, found in zip(names, run_ranks(world, _runs, parallels, model, more, timeout_s=3000)[0], strict=True):
            assert np.abs(np.array(found[0]) - expected[0]).max() <= 1e-5, cell
            assert expected[0][-1] < expected[0][0] - 0.5
            for name, by, bound in _departures(found, expected, model, more):
                assert by <= bound, (cell, name)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cells", [QUICK, slow(ALL)], ids=["some", "all"])
def test_every_layout_makes_the_updates_of_one_rank(cells: list[Cell]) -> None:
    _check(cells)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "cells",
    [
        [("tp2dp2", "zero 3")],
        [("ep2", "zero 1")],
        slow([("tp4", "zero 0"), ("tp2+sp", "zero 1"), ("pp2", "zero 1"), ("dp4", "zero 2")]),
        slow(_half(OF_EXPERTS, (zero for zero in ZERO if zero != "zero 3"))),
    ],
    ids=["some", "shared", "more", "more shared"],
)
def test_every_layout_makes_the_updates_of_experts_that_one_rank_makes(cells: list[Cell]) -> None:
    _check(cells, EXPERTS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_layout_makes_the_updates_of_one_rank_with_mup() -> None:
    mup = {"base_width": 16, "base_ffn": 32, "output_multiplier": 4.0}
    _check([("tp2dp2", "zero 1"), ("tp4", "zero 0"), ("pp2dp2", "zero 3")], MODEL | {"mup": mup})


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "cells",
    [[("tp2", "zero 1")], slow([("tp2dp2", "zero 3"), ("pp2dp2", "zero 1"), ("cp2dp2", "zero 2")])],
    ids=["some", "more"],
)
def test_every_layout_makes_the_updates_of_one_rank_in_three_parts_of_bf16(cells: list[Cell]) -> None:
    """With Polar Express's coefficients; within the 1e-3 that `pretrain verify` allows, or what gradients explain."""
    _check(cells, **IN_PARTS)


def test_each_expert_has_the_updates_of_torch_s_muon() -> None:
    """In torch's bf16. An expert's gate, its value and its second matrix are three matrices."""
    ((_, weights, gradients),) = run_ranks(1, _runs, [{}], EXPERTS, {"ns_precision": "bf16", "clip_norm": 0.0})[0]
    count, seen = EXPERTS["experts"]["count"], 0
    for matrix, cuts in ((1, (slice(0, None, 2), slice(1, None, 2))), (2, (slice(None),))):
        name = f"decoder.layers.1.mlp.experts.linear_fc{matrix}.weight"
        for expert, cut in product(range(count), cuts):
            before, *states = (torch.tensor(one[f"model/{name}"][expert][cut]) for one in weights[:3])
            theirs = torch.nn.Parameter(before.clone())
            muon = torch.optim.Muon(
                [theirs], lr=OPTIMIZER["learning_rate"], weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
            )
            for state, gradient in zip(states, gradients, strict=False):
                theirs.grad = torch.tensor(gradient[f"gradient/{name}"][expert][cut])
                muon.step()
                torch.testing.assert_close(theirs.detach(), state, rtol=0, atol=1e-6)
            seen += not torch.allclose(before, states[0], atol=1e-4)
    assert seen == 3 * count
