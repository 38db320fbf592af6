"""Logits that are made, judged and forgotten a few positions at a time are worth what all at once are: loss, terms,
gradient of every weight, and scores."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.data.synthetic import SyntheticStream
from pretrain.models import output_linear
from tests.helpers.breadth import only, slow
from tests.helpers.families import family_config
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import LENGTH, ROWS, build_engine, whole

_POSITIONS = 10
"""at a time, of two rows: 5 of each, which divide no length"""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a tied head, a cap, smoothing, drift": ("gemma2", {"objective": {"label_smoothing": 0.1, "z_loss": 0.01}}),
    "a bias, a question, drift": ("bert", {"objective": {"z_loss": 0.01}}),
    "a head of its own": ("llama", {}),
    "an encoder-decoder": ("t5", {}),
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "tensor 2": (2, {"tensor": 2}),
    "tensor 2, sequence": (2, {"tensor": 2, "sequence": True}),
    "pipeline 2": (2, {"pipeline": 2}),
    "zero 3": (2, {"zero": 3, "zero_engine": "deepspeed"}),
}


@dataclass(frozen=True)
class Found:
    loss: float
    terms: dict[str, tuple[float, int]]
    gradients: dict[str, np.ndarray]
    log_probability: np.ndarray
    calls: int
    """how often logits were judged"""


def judged(
    family: str, settings: dict[str, Any], parallel: dict[str, Any], at_once: int, precision: str = "fp32"
) -> Found:  # fmt: skip
    calls = 0
    config = family_config(family, parallel=parallel, batch={"micro_sequences": 2}, precision=precision, **settings)
    engine = build_engine(config)
    engine.keeps_gradients = True
    sums = engine.objective.judge_sums  # type: ignore[attr-defined]

    def counted(*asked: Any) -> Any:
        nonlocal calls
        calls += 1
        return sums(*asked)

    engine.objective.judge_sums = counted  # type: ignore[attr-defined]
    source = SyntheticStream(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_linear, "positions_at_once", lambda vocabulary: at_once)
        result = engine.train_step(source.batch(0, ROWS, engine.data_rank, engine.data_world), 1e-3, 1)
        gradients = whole(engine.gradients())
        scores = engine.score(source.batch(ROWS, ROWS, 0, 1))
    return Found(
        result.loss_sum / result.token_count, dict(result.terms), gradients, scores.log_probability, calls
    )  # fmt: skip


def assert_like(found: Found, expected: Found, rel: float) -> None:
    assert found.loss == pytest.approx(expected.loss, rel=rel)
    assert found.terms.keys() == expected.terms.keys()
    for name, (value, count) in found.terms.items():
        assert (pytest.approx(value, rel=rel), count) == expected.terms[name]
    np.testing.assert_allclose(found.log_probability, expected.log_probability, rtol=rel, atol=rel)
    for name, gradient in expected.gradients.items():
        assert np.linalg.norm(found.gradients[name] - gradient) <= 10 * rel * np.linalg.norm(gradient) + 1e-9, name


@pytest.mark.parametrize("layout", only([name for name in LAYOUTS if name != "tensor 2"], LAYOUTS))
@pytest.mark.parametrize("case", ["a tied head, a cap, smoothing, drift", *map(slow, list(CASES)[1:])])
def test_few_logits_at_a_time_are_worth_what_all_are(case: str, layout: str) -> None:
    family, settings = CASES[case]
    (expected,) = run_ranks(1, judged, family, settings, {}, 10**6)
    world, parallel = LAYOUTS[layout]
    few = run_ranks(world, judged, family, settings, parallel, _POSITIONS)
    assert_like(few[-1], expected, 1e-5)
    assert few[-1].calls > 3 * expected.calls / world, "they were judged a few at a time"


def _beside_plain_torch(at_once: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ours, torch's) of the loss and its gradients, times a factor as a loss scale is."""
    factor, smoothing, z = 3.0, 0.1, 0.01
    engine = build_engine(family_config("llama", objective={"label_smoothing": smoothing, "z_loss": z}))
    layer, sums = engine.bare[0].output_layer, engine.objective.judge_sums  # type: ignore[attr-defined]
    words, random = engine.objective.vocabulary, torch.Generator().manual_seed(1)  # type: ignore[attr-defined]
    hidden, weights = torch.randn(7, 3, 64, generator=random), layer.weight.detach()
    labels = torch.randint(0, words, (7, 3), generator=random)
    mask = torch.randint(0, 2, (7, 3), generator=random).float()

    ours, own = (one.clone().requires_grad_() for one in (hidden, weights))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_linear, "positions_at_once", lambda vocabulary: at_once)
        (loss, squares), _ = layer(ours, own, judge=lambda logits, where: sums(logits, labels[where], mask[where]))
    (loss * factor).backward()

    theirs, weight = (one.clone().requires_grad_() for one in (hidden, weights))
    logits = (theirs @ weight.T)[..., :words]
    label, normal = logits.gather(-1, labels[..., None])[..., 0], logits.logsumexp(-1)
    losses = ((normal - label + smoothing * (label - logits.mean(-1))) * mask).sum()
    drift = (normal.square() * mask).sum()
    ((losses + z * drift) * factor).backward()

    pairs = [(loss, losses), (squares, drift), (ours.grad, theirs.grad), (own.grad, weight.grad)]
    return [(one.detach().numpy(), other.detach().numpy()) for one, other in pairs]


@pytest.mark.parametrize("at_once", [6, 100], ids=["two of each row", "all"])
def test_loss_and_gradients_are_those_of_plain_torch(at_once: int) -> None:
    for ours, theirs in run_ranks(1, _beside_plain_torch, at_once)[0]:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


class _Largest(TorchDispatchMode):
    """The most values that a tensor had which an operation made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values = 0

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        made = operation(*arguments, **(named or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor):
                self.values = max(self.values, one.numel())
        return made


def _largest(at_once: int) -> tuple[int, int]:
    """In a training step, and in scoring."""
    words = {"vocabulary": 3000, "hidden": 16, "ffn": 32, "heads": 2, "kv_heads": 2, "head_dim": 8}
    engine = build_engine(family_config("llama", model=words, batch={"micro_sequences": ROWS}))
    source = SyntheticStream(engine.config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_linear, "positions_at_once", lambda vocabulary: at_once)
        with _Largest() as trained:
            engine.train_step(source.batch(0, ROWS, 0, 1), 1e-3, 1)
        with _Largest() as scored:
            engine.score(source.batch(ROWS, ROWS, 0, 1))
    return trained.values, scored.values


def test_all_logits_are_never_there() -> None:
    words = 3072
    every = ROWS * LENGTH * words
    assert run_ranks(1, _largest, 10**6)[0] == (every, every), "or this test sees nothing"
    trained, scored = run_ranks(1, _largest, 2 * ROWS)[0]
    assert scored == 2 * ROWS * words
    assert trained < every / 4, "what is largest is the buffer of all gradients"


@pytest.mark.parametrize("layout", [slow("one rank"), "tensor 2, sequence", slow("zero 3")])
def test_in_bf16_too(layout: str) -> None:
    world, parallel = LAYOUTS[layout]
    expected, few = (run_ranks(world, judged, "bert", {}, parallel, n, "bf16")[0] for n in (10**6, _POSITIONS))
    assert_like(few, expected, 1e-3)


def test_fp16_has_all_logits_at_once_when_trained() -> None:
    (found,) = run_ranks(1, judged, "qwen2", {}, {}, _POSITIONS, "fp16")
    assert found.calls == ROWS / 2, "once for each micro-batch"
