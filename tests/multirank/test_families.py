"""Every family trains alike on every layout: with and without dropout, sharded by either engine, and across layouts
from one checkpoint."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.breadth import slow
from tests.helpers.families import FAMILIES, each, family_config, takes, train_family
from tests.helpers.hf import save, tokenizer_for
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, whole_state

STEPS = 3
TOLERANCE = 1e-5
BF16_TOLERANCE = 0.05  # of losses of 5 to 6
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2pp2+vp2": {"tensor": 2, "pipeline": 2, "virtual": 2},
}
MORE: dict[str, dict[str, Any]] = {
    "tp2pp2": {"tensor": 2, "pipeline": 2},
    "pp2dp2+vp2": {"pipeline": 2, "virtual": 2},
    "tp2pp2+sp": {"tensor": 2, "pipeline": 2, "sequence": True},
    "pp4": {"pipeline": 4},
    "tp2cp2": {"tensor": 2, "context": 2},
    "cp2pp2": {"context": 2, "pipeline": 2},
    "dp4+recompute": {"recompute": "full"},
    "tp2dp2+sp+selective": {"tensor": 2, "sequence": True, "recompute": "selective"},
    "dp4+zero2": {"zero": 2, "zero_engine": "deepspeed"},
    "pp2dp2+zero3": {"pipeline": 2, "zero": 3, "zero_engine": "deepspeed"},
    "tp2dp2+sp+zero3": {"tensor": 2, "sequence": True, "zero": 3, "zero_engine": "deepspeed"},
}
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}
SHARING = ("tp2pp2+sp", "tp2cp2", "dp4+recompute")  # the ways in which ranks share a dropout's mask
OTHERS = ("pp4", "cp2pp2", "tp2dp2+sp+selective", "pp2dp2+zero3")
RECOMPUTED: list[dict[str, Any]] = [{"recompute": "selective"}, {"recompute": "full"}]


def _curves(family: str, parallels: list[dict[str, Any]], sections: dict[str, Any]) -> list[Any]:
    return [curve for _, curve in _starts_and_curves(family, parallels, sections)]


def _starts_and_curves(family: str, parallels: list[dict[str, Any]], sections: dict[str, Any]) -> list[Any]:
    found = []
    for parallel in parallels:
        engine = build_engine(family_config(family, parallel=parallel, **sections))
        start = {name: value for name, value in whole_state(engine).items() if name.startswith("model/")}
        found.append((start, train_family(engine, range(1, STEPS + 1))))
        meet_again()
    return found


def _departures(family: str, layouts: dict[str, dict[str, Any]], **sections: Any) -> dict[str, float]:
    """Largest difference of losses and gradient norms from one rank."""
    expected = np.array(run_ranks(1, _curves, family, [{}], sections)[0][0])
    curves = run_ranks(4, _curves, family, list(layouts.values()), sections)[0]
    return _largest(dict(zip(layouts, curves, strict=True)), expected)


def _possible(family: str, layouts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The layouts of `layouts` that the family does not refuse, at least one."""
    return {n: p for n, p in layouts.items() if takes(family, p)} or {"tp2pp2": MORE["tp2pp2"]}


def _largest(curves: dict[str, Any], expected: np.ndarray) -> dict[str, float]:
    assert np.ptp(expected[:, 0]) > 1e-3, "weights change"
    return {name: np.abs(np.array(curve) - expected).max() for name, curve in curves.items()}


@pytest.mark.parametrize("family", each(FAMILIES))
def test_a_family_starts_bit_equal_and_trains_alike_on_every_layout(family: str) -> None:
    """And to the bit where activations are recomputed, unless layers have weights in common."""
    recomputed = [parallel for parallel in RECOMPUTED if takes(family, parallel)]
    (start, expected), *again = run_ranks(1, _starts_and_curves, family, [{}, *recomputed], {})[0]
    if family_config(family).model.layers_share_by is None:
        assert [curve for _, curve in again] == [expected] * len(recomputed), recomputed
    else:  # uses of one weight are then summed in another order
        assert max(np.abs(np.array(curve) - expected).max() for _, curve in again) <= TOLERANCE
    layouts = _possible(family, LAYOUTS)
    found = run_ranks(4, _starts_and_curves, family, list(layouts.values()), {})[0]
    departures = _largest({name: curve for name, (_, curve) in zip(layouts, found, strict=True)}, np.array(expected))
    assert max(departures.values()) <= TOLERANCE, departures
    for other, _ in found:
        assert other.keys() == start.keys()
        for name, value in other.items():
            assert np.array_equal(value, start[name]), name


@pytest.mark.slow
@pytest.mark.parametrize(("number", "family"), enumerate(FAMILIES), ids=FAMILIES)
def test_a_family_trains_alike_on_more_layouts(number: int, family: str) -> None:
    """Each family on half of them, the next on the other half."""
    departures = _departures(family, _possible(family, {name: MORE[name] for name in list(MORE)[number % 2 :: 2]}))
    assert max(departures.values()) <= TOLERANCE, departures


@pytest.mark.parametrize("family", [pytest.param("bert", marks=pytest.mark.slow), "t5"])
def test_the_same_elements_drop_out_on_every_layout(family: str) -> None:
    model = DROPOUT | ({"ffn_dropout": 0.1} if family == "t5" else {})
    departures = _departures(family, {name: MORE[name] for name in SHARING}, model=model)
    assert max(departures.values()) <= TOLERANCE, departures
    alone = [np.array(run_ranks(1, _curves, family, [{}], {"model": x})[0][0]) for x in ({}, model)]
    assert np.abs(alone[0] - alone[1]).max() > 100 * TOLERANCE, "dropout is at work"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["t5v1.1", "transformer", "bart"])
def test_the_same_elements_drop_out_on_more_layouts(family: str) -> None:
    layouts = LAYOUTS | {name: MORE[name] for name in OTHERS}
    departures = _departures(family, layouts, model=DROPOUT | {"ffn_dropout": 0.1} if "t5" in family else DROPOUT)
    assert max(departures.values()) <= TOLERANCE, departures


def _gradients(precision: str) -> dict[str, np.ndarray]:
    engine = build_engine(family_config("t5", precision=precision))
    engine.keeps_gradients = True
    train_family(engine, range(1, 2))
    return {name: part.pieces[0].value.float().numpy().copy() for name, part in engine.gradients().items()}


def test_gradients_of_distance_tables_lose_little_to_half_precision() -> None:
    """Each is a sum over all pairs of positions, and over layers: it is no further off than others are."""
    full, half = (run_ranks(1, _gradients, precision)[0] for precision in ("fp32", "bf16"))
    off = {name: np.linalg.norm(half[name] - value) / np.linalg.norm(value) for name, value in full.items()}
    tables = [part for name, part in off.items() if "relative" in name]
    assert len(tables) == 2
    assert max(tables) <= 2 * np.median(list(off.values()))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "t5v1.1", "bart", "gemma", "llama"])
def test_half_precision_departs_by_its_rounding(family: str) -> None:
    departures = _departures(family, {name: MORE[name] for name in ("tp2pp2+sp", "tp2cp2")}, precision="bf16")
    assert max(departures.values()) <= BF16_TOLERANCE, departures


def _save(family: str, parallel: dict[str, Any], tokenizer: Path, directory: Path) -> Any:
    engine = build_engine(family_config(family, parallel=parallel))
    before = train_family(engine, range(1, STEPS + 1))
    save(engine, engine.config, tokenizer, directory)
    return before + train_family(engine, range(STEPS + 1, 2 * STEPS + 1))


def _go_on(family: str, parallel: dict[str, Any], checkpoint: Path) -> Any:
    from pretrain.checkpoint import store

    engine = build_engine(family_config(family, parallel=parallel))
    store.load(checkpoint, engine.state())
    engine.state_loaded(STEPS)
    return train_family(engine, range(STEPS + 1, 2 * STEPS + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "then"),
    [
        slow(("bert", {"pipeline": 2, "zero": 3, "zero_engine": "deepspeed"})),
        slow(("t5v1.1", {"pipeline": 4})),
        slow(("shared_experts", {"tensor": 2, "sequence": True})),
        ("transformer", {"tensor": 2, "sequence": True}),
    ],
    ids=["bert", "t5v1.1", "shared_experts", "transformer"],
)
def test_a_family_goes_on_from_its_checkpoint_on_another_layout(
    family: str, then: dict[str, Any], tmp_path: Path
) -> None:
    first = MORE["tp2pp2"]
    expected = run_ranks(4, _save, family, first, tokenizer_for(family, tmp_path), tmp_path / "checkpoints")[0]
    found = run_ranks(4, _go_on, family, then, tmp_path / "checkpoints" / "step-00000000")[0]
    assert np.abs(np.array(found) - np.array(expected[STEPS:])).max() <= TOLERANCE
