"""Each update rule on each way to share it out: against the rule as its paper has it, on whole tensors, and one rank.

Every cell trains 6 steps with gradients kept; after the 3rd it saves, and the next cell, of another layout or sharding,
goes on from there. Some cells are tried with every test run, all of them with `make test-slow`.
"""

from collections.abc import Callable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pretrain.checkpoint import store
from pretrain.config.optimizer import Optimizer
from pretrain.config.run_config import RunConfig
from tests.helpers.breadth import slow
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import VOCABULARY, build_engine, save, tiny_config, train, whole, whole_state

SAVED, STEPS = 3, 6
EMBEDDING = "embedding.word_embeddings.weight"

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"name": "adam", "learning_rate": 1e-3, "eps": 1e-6, "weight_decay": 0.1},
    "adamw uncorrected": {"name": "adamw", "learning_rate": 1e-3, "eps": 1e-6, "bias_correction": False},
    "lamb": {"name": "lamb", "learning_rate": 3e-2, "eps": 1e-6, "weight_decay": 0.1},
    "adagrad": {"name": "adagrad", "learning_rate": 3e-2, "weight_decay": 0.1, "initial_accumulator_value": 1e-3},
    "lion": {"name": "lion", "learning_rate": 3e-4, "weight_decay": 1.0},
    "adafactor": {"name": "adafactor", "learning_rate": 3e-2},
    "adafactor with all": {
        "name": "adafactor", "learning_rate": 5e-4, "scale_parameter": False, "beta1": 0.5, "weight_decay": 0.1,
    },
    "muon": {"name": "muon", "learning_rate": 2e-3, "adamw_learning_rate": 3e-3},
    "muon with all": {
        "name": "muon", "learning_rate": 1e-2, "adamw_learning_rate": 1e-3, "adjust_lr_fn": "original", "ns_steps": 4,
        "ns_final_steps": 2, "nesterov": False, "per_head": True, "momentum": 0.9,
    },
}  # fmt: skip
DEEPSPEED = {"zero_engine": "deepspeed"}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "tensor 2 + sequence": (2, {"tensor": 2, "sequence": True}),
    "pipeline 2": (2, {"pipeline": 2}),
    "data 2, zero 0": (2, {"zero": 0}),
    "data 2, zero 1": (2, {"zero": 1}),
    "data 2, DeepSpeed's zero 1": (2, {"zero": 1, **DEEPSPEED}),
    "data 2, zero 2": (2, {"zero": 2, **DEEPSPEED}),
    "data 2, zero 3, offloaded": (2, {"zero": 3, "offload_optimizer": True, **DEEPSPEED}),
    "tensor 2 x data 2, zero 1": (4, {"tensor": 2}),
    "tensor 2 x context 2, zero 3": (4, {"tensor": 2, "context": 2, "zero": 3, **DEEPSPEED}),
    "pipeline 2 x data 2, zero 1": (4, {"pipeline": 2}),
    "pipeline 2 x data 2 + virtual 2, zero 2": (4, {"pipeline": 2, "virtual": 2, "zero": 2, **DEEPSPEED}),
}


Cells = dict[str, list[str]]
"""optimizer -> layouts, those of one size side by side, in the order of their checkpoints; one rank is the first"""
QUICK = ("adam", "lamb", "adafactor")
"""of one moment by element, of sums over whole parameters, of sums over rows and columns; Muon has test_muon.py"""
TABLE: Cells = {optimizer: list(LAYOUTS) for optimizer in OPTIMIZERS}
SOME: Cells = {
    "adam": ["one rank", "data 2, zero 2"],
    "adamw uncorrected": ["one rank", "data 2, zero 2", "pipeline 2 x data 2, zero 1"],
    "lamb": ["one rank", "pipeline 2 x data 2 + virtual 2, zero 2"],
    "adagrad": ["one rank", "pipeline 2 x data 2, zero 1"],
    "lion": ["one rank", "data 2, zero 3, offloaded", "pipeline 2 x data 2, zero 1"],
    "adafactor": ["one rank", "data 2, zero 3, offloaded", "tensor 2 x data 2, zero 1"],
    "adafactor with all": ["one rank", "tensor 2 + sequence"],
    "muon": ["one rank", "data 2, zero 3, offloaded", "tensor 2 x data 2, zero 1"],
    "muon with all": ["one rank", "tensor 2 + sequence"],
}


def _config(optimizer: str, parallel: dict[str, Any]) -> RunConfig:
    return tiny_config(optimizer=OPTIMIZERS[optimizer], parallel=parallel)


def _cells(optimizer: str, layouts: list[str], directories: list[Path]) -> list[Any]:
    """For each layout: (initial state, whole gradient of each step, curve, final state, curve from the 4th step on
    after loading the checkpoint of the cell before, embedding as this rank computes with it)."""
    found = []
    for layout, previous, own in zip(layouts, directories, directories[1:], strict=False):
        engine = build_engine(_config(optimizer, LAYOUTS[layout][1]))
        engine.keeps_gradients = True
        initial, gradients, curve = whole_state(engine), [], []
        for step in range(STEPS):
            curve += train(engine, range(step, step + 1))
            gradients.append(whole(engine.gradients()))
            if step == SAVED - 1:
                save(own, engine, SAVED)
        final = whole_state(engine)
        pieces = engine.weights_in_use()[f"weight/{EMBEDDING}"].pieces
        embedding = np.concatenate([piece.value.flatten().numpy() for piece in pieces])
        store.load(previous / f"step-{SAVED:08d}", engine.state())
        engine.state_loaded(SAVED)
        found.append((initial, gradients, curve, final, train(engine, range(SAVED, STEPS)), embedding))
        meet_again()
    return found


def _results(optimizer: str, layouts: list[str], root: Path) -> dict[str, Any]:
    """layout -> result of each rank"""
    places = [root / optimizer / layout for layout in layouts]
    places.insert(0, places[0])  # the very first goes on from its own
    results: dict[str, Any] = {}
    for world, together in groupby(layouts, lambda layout: LAYOUTS[layout][0]):
        names = list(together)
        ranks = run_ranks(world, _cells, optimizer, names, places[len(results) :], timeout_s=580)
        results |= {layout: [rank[index] for rank in ranks] for index, layout in enumerate(names)}
    return results


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    root = tmp_path_factory.mktemp("some")
    return cache(lambda optimizer: _results(optimizer, SOME[optimizer], root))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    root = tmp_path_factory.mktemp("table")
    return cache(lambda optimizer: _results(optimizer, TABLE[optimizer], root))


State = dict[str, Tensor]


def _lamb(settings: Optimizer, name: str, w: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    """You et al. 2019, algorithm 2."""
    state["exp_avg"] = settings.beta1 * state.get("exp_avg", 0) + (1 - settings.beta1) * g
    state["exp_avg_sq"] = settings.beta2 * state.get("exp_avg_sq", 0) + (1 - settings.beta2) * g**2
    m, v = state["exp_avg"] / (1 - settings.beta1**t), state["exp_avg_sq"] / (1 - settings.beta2**t)
    r = m / (v**0.5 + settings.eps)
    if w.dim() == 1:
        return w - settings.learning_rate * r
    u = r + settings.weight_decay * w
    return w - settings.learning_rate * _real(name, w).norm() / _real(name, u).norm() * u


def _adafactor(settings: Optimizer, name: str, w: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    """Shazeer and Stern 2018, algorithms 4 and 5 with the parameters of section 9."""
    decay, squares = 1 - t**-0.8, g**2 + 1e-30
    if w.dim() == 2:
        rows, columns = _real(name, w).shape
        state["exp_avg_sq_row"] = decay * state.get("exp_avg_sq_row", 0) + (1 - decay) * squares.sum(1) / columns
        state["exp_avg_sq_col"] = (
            decay * state.get("exp_avg_sq_col", 0) + (1 - decay) * _real(name, squares).sum(0) / rows
        )
        v = torch.outer(state["exp_avg_sq_row"] * columns, state["exp_avg_sq_col"] * rows)
        v /= _real(name, state["exp_avg_sq_row"] * columns).sum()
    else:
        v = state["exp_avg_sq"] = decay * state.get("exp_avg_sq", 0) + (1 - decay) * squares
    u = g / v**0.5
    u = u / max(1.0, _rms(_real(name, u)))
    rate = settings.learning_rate * (max(1e-3, _rms(_real(name, w))) if settings.scale_parameter else 1.0)
    step = rate * u
    if settings.beta1:
        step = state["exp_avg"] = settings.beta1 * state.get("exp_avg", 0) + (1 - settings.beta1) * step
    penalty = settings.learning_rate * settings.weight_decay * w if w.dim() == 2 else 0.0
    return w - step - penalty


def _adam(settings: Optimizer, name: str, w: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    """Kingma and Ba 2014, algorithm 1, of a loss with an L2 penalty."""
    g = g + settings.weight_decay * w if w.dim() == 2 else g
    state["exp_avg"] = settings.beta1 * state.get("exp_avg", 0) + (1 - settings.beta1) * g
    state["exp_avg_sq"] = settings.beta2 * state.get("exp_avg_sq", 0) + (1 - settings.beta2) * g**2
    m, v = state["exp_avg"] / (1 - settings.beta1**t), state["exp_avg_sq"] / (1 - settings.beta2**t)
    return w - settings.learning_rate * m / (v**0.5 + settings.eps)


def _uncorrected(settings: Optimizer, name: str, w: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    """google-research/electra, model/optimization.py, whose moments are as they are."""
    state["exp_avg"] = settings.beta1 * state.get("exp_avg", 0) + (1 - settings.beta1) * g
    state["exp_avg_sq"] = settings.beta2 * state.get("exp_avg_sq", 0) + (1 - settings.beta2) * g**2
    u = state["exp_avg"] / (state["exp_avg_sq"] ** 0.5 + settings.eps)
    return w - settings.learning_rate * (u + settings.weight_decay * w if w.dim() == 2 else u)


def _adagrad(settings: Optimizer, name: str, w: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    """Duchi et al. 2011, figure 1, with what TensorFlow's begins with."""
    state["sum_sq"] = state.get("sum_sq", 0) + g**2
    decayed = w * (1 - settings.learning_rate * settings.weight_decay) if w.dim() > 1 else w
    return decayed - settings.learning_rate * g / (
        (settings.initial_accumulator_value + state["sum_sq"]) ** 0.5 + settings.eps
    )


def _lion(settings: Optimizer, name: str, w: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    """Chen et al. 2023, algorithm 2, but that a sign is free (0 in `clear`) where the two addends cancel in fp32."""
    m = state.get("exp_avg", torch.zeros_like(g))
    direction = settings.beta1 * m + (1 - settings.beta1) * g
    addends = settings.beta1 * m.abs() + (1 - settings.beta1) * g.abs()
    state["clear"] = state.get("clear", torch.ones_like(g)) * (direction.abs() >= 1e-6 * addends)
    state["exp_avg"] = settings.beta2 * m + (1 - settings.beta2) * g
    decayed = w * (1 - settings.learning_rate * settings.weight_decay) if w.dim() > 1 else w
    return decayed - settings.learning_rate * direction.sign()


def _muon(settings: Optimizer, name: str, w: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    """Jordan 2024 on the matrices that the paper has, cut out of ours; Loshchilov and Hutter 2017 for all else."""
    decayed = w * (1 - settings.learning_rate * settings.weight_decay) if w.dim() == 2 else w
    if w.dim() == 1 or "embedding" in name:
        rate = settings.adamw_learning_rate
        decayed = w * (1 - rate * settings.weight_decay) if w.dim() == 2 else w
        state["exp_avg"] = 0.9 * state.get("exp_avg", 0) + 0.1 * g
        state["exp_avg_sq"] = 0.95 * state.get("exp_avg_sq", 0) + 0.05 * g**2
        m, v = state["exp_avg"] / (1 - 0.9**t), state["exp_avg_sq"] / (1 - 0.95**t)
        return decayed - rate * m / (v**0.5 + settings.adamw_eps)
    state["momentum"] = settings.momentum * state.get("momentum", 0) + (1 - settings.momentum) * g
    u = state["momentum"]
    if settings.nesterov:
        u = settings.momentum * u + (1 - settings.momentum) * g
    heads, size = 4, w.shape[0] // 12
    parts = [u]
    if "linear_qkv" in name:  # query, key and value of each head in turn
        by_head = u.view(heads, 3, size, -1)
        parts = [by_head[h, i] for h in range(heads) for i in range(3)]
        if not settings.per_head:
            parts = [by_head[:, i].flatten(0, 1) for i in range(3)]
    stepped = [_orthogonalized(settings, part) for part in parts]
    if "linear_qkv" in name and settings.per_head:
        whole_u = torch.cat(stepped)
    elif "linear_qkv" in name:
        whole_u = torch.stack([part.view(heads, size, -1) for part in stepped], dim=1).flatten(0, 2)
    else:
        (whole_u,) = stepped
    return decayed - settings.learning_rate * whole_u


def _orthogonalized(settings: Optimizer, u: Tensor) -> Tensor:
    """Times what its rate is adjusted by."""
    rows, columns = u.shape
    x = u / u.norm()
    for a, b, c in [(3.4445, -4.7750, 2.0315)] * settings.ns_steps + [(2.0, -1.5, 0.5)] * settings.ns_final_steps:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x * (max(1, rows / columns) ** 0.5 if settings.adjust_lr_fn == "original" else 0.2 * max(u.shape) ** 0.5)


RULES: dict[str, Callable[[Optimizer, str, Tensor, Tensor, State, int], Tensor]] = {
    "adam": _adam,
    "adamw": _uncorrected,
    "lamb": _lamb,
    "adagrad": _adagrad,
    "lion": _lion,
    "adafactor": _adafactor,
    "muon": _muon,
}


def _real(name: str, value: Tensor) -> Tensor:
    return value[:VOCABULARY] if name == EMBEDDING else value


def _rms(value: Tensor) -> float:
    return float((value**2).mean() ** 0.5)


def _reference(optimizer: str, initial: dict[str, np.ndarray], gradients: list[dict[str, np.ndarray]]) -> State:
    """The state after steps with these gradients, in fp64, under the names of checkpoints."""
    settings = _config(optimizer, {}).optimizer
    found: State = {}
    for name in (name.removeprefix("model/") for name in initial if name.startswith("model/")):
        w, state = torch.from_numpy(initial[f"model/{name}"]).double(), {}
        for t, gradient in enumerate(gradients, 1):
            g = torch.from_numpy(gradient[f"gradient/{name}"]).double()
            w = RULES[settings.name](settings, name, w, g, state, t)
        found |= {f"model/{name}": w, **{f"{kind}/{name}": value for kind, value in state.items()}}
    return found


def _assert_follows_the_paper(optimizer: str, found: Any) -> None:
    """Given the layout's own gradients, which differ from one rank's by rounding."""
    initial, gradients, _, final, *_ = found
    expected = _reference(optimizer, initial, gradients)
    clear = {name: expected.pop(name) for name in [*expected] if name.startswith("clear/")}
    assert final.keys() == expected.keys() == initial.keys()
    assert all(float(mask.mean()) > 0.999 for mask in clear.values())
    for name, value in expected.items():
        difference = torch.from_numpy(final[name]).double() - value
        difference *= clear.get(f"clear/{name.removeprefix('model/')}", 1.0)
        assert difference.shape == value.shape, name
        # Orthogonalized matrices are as exact as tests/unit/engine/test_newton_schulz.py says, of what they have moved.
        moved = torch.from_numpy(initial[name]) - value if optimizer.startswith("muon") else torch.zeros(1)
        bound = 3e-6 * float(value.abs().max()) + 1e-5 * float(moved.abs().max())
        assert float(difference.abs().max()) <= bound, name


def _assert_follows_one_rank(optimizer: str, found: Any, expected: Any) -> None:
    _, _, curve, final, continued, _ = found
    losses, expected_losses = np.array(curve)[:, 0], np.array(expected[2])[:, 0]
    assert expected_losses[-1] < expected_losses[0] - 0.2, "the run learns, so that agreement means something"
    assert np.abs(losses - expected_losses).max() <= 1e-5
    assert np.abs(np.array(continued)[:, 0] - expected_losses[SAVED:]).max() <= 1e-5
    for name in (name for name in final if name.startswith("model/")):
        if name.endswith("linear_qkv.bias"):  # of keys: its gradient is zero but for rounding, which is normalised
            continue
        apart = np.abs(final[name] - expected[3][name])
        # Lion makes a whole step, of a sign that is chance, where its direction is within rounding of zero.
        assert (apart > 1e-5).mean() <= (2e-3 if optimizer == "lion" else 0), (name, apart.max())


def _assert_cell(optimizer: str, layout: str, results: dict[str, Any]) -> None:
    found = results[layout]
    _assert_follows_the_paper(optimizer, found[0])
    _assert_follows_one_rank(optimizer, found[0], results["one rank"][0])
    if "zero 3" not in layout and "tensor" not in layout:  # every rank with the embedding has it whole
        first, *others = (rank[-1] for rank in found)
        for other in others:
            np.testing.assert_array_equal(first, other)


def _cases(cells: Cells) -> list[tuple[str, str]]:
    return [
        (optimizer, layout) if cells is SOME and optimizer in QUICK else slow((optimizer, layout))
        for optimizer, layouts in cells.items()
        for layout in layouts
    ]


@pytest.mark.parametrize(("optimizer", "layout"), _cases(SOME))
def test_cell_follows_the_paper_and_one_rank_and_goes_on_from_the_cell_before(
    optimizer: str, layout: str, some: Callable[[str], dict[str, Any]]
) -> None:
    _assert_cell(optimizer, layout, some(optimizer))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("optimizer", "layout"), _cases(TABLE))
def test_every_cell_of_the_table_is_the_same_run(
    optimizer: str, layout: str, table: Callable[[str], dict[str, Any]]
) -> None:
    _assert_cell(optimizer, layout, table(optimizer))


def _stepped(
    initial: dict[str, np.ndarray],
    gradients: list[dict[str, np.ndarray]],
    build: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> dict[str, Tensor]:
    """The weights after steps of an optimizer of torch's kind, in fp64, without rows of padding."""
    names = [name.removeprefix("model/") for name in initial if name.startswith("model/")]
    weights = {name: nn.Parameter(_real(name, torch.from_numpy(initial[f"model/{name}"]).double())) for name in names}
    optimizer = build(list(weights.values()))
    for gradient in gradients:
        for name, weight in weights.items():
            weight.grad = _real(name, torch.from_numpy(gradient[f"gradient/{name}"]).double())
        optimizer.step()
    return {name: weight.detach() for name, weight in weights.items()}


@pytest.mark.parametrize("name", ["adafactor", slow("adafactor with all")])
def test_adafactor_is_that_of_transformers(name: str, some: Callable[[str], dict[str, Any]]) -> None:
    """But for weight decay, which there is multiplied by the weights' RMS, too, and not of matrices only."""
    from transformers.optimization import Adafactor

    initial, gradients, _, final, *_ = some(name)["one rank"][0]
    settings = _config(name, {}).optimizer

    def build(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [
            {"params": [w for w in weights if w.dim() == 2], "weight_decay": settings.weight_decay},
            {"params": [w for w in weights if w.dim() == 1], "weight_decay": 0.0},
        ]
        return Adafactor(
            groups, lr=settings.learning_rate, eps=(1e-30, 1e-3), clip_threshold=1.0, decay_rate=-0.8,
            beta1=settings.beta1 or None, scale_parameter=settings.scale_parameter, relative_step=False,
            warmup_init=False,
        )  # fmt: skip

    for key, value in _stepped(initial, gradients, build).items():
        found = _real(key, torch.from_numpy(final[f"model/{key}"]).double())
        torch.testing.assert_close(found, value, rtol=0, atol=2e-6 * float(value.abs().max()), msg=key)


def test_adafactor_is_that_of_torch(some: Callable[[str], dict[str, Any]]) -> None:
    """Where the learning rate is below its own bound of 1 / sqrt(step). Its epsilon is another, which shows where a
    gradient is nearly zero (that of keys' biases)."""
    initial, gradients, _, final, *_ = some("adafactor")["one rank"][0]
    rate = _config("adafactor", {}).optimizer.learning_rate
    expected = _stepped(
        initial, gradients, lambda w: torch.optim.Adafactor(w, lr=rate, weight_decay=0.0, eps=(1e-30, 1e-3))
    )
    for key, value in expected.items():
        if key.endswith("linear_qkv.bias"):
            continue
        found = _real(key, torch.from_numpy(final[f"model/{key}"]).double())
        torch.testing.assert_close(found, value, rtol=0, atol=2e-6 * float(value.abs().max()), msg=key)
