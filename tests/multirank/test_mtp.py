"""Multi-token prediction: what it computes, against an oracle; that it is the same on every layout; and that what could
go wrong is seen."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_pipeline.batch import Batch, Cursor, Rows
from pretrain.checkpoint import store
from pretrain.config.run_config import RunConfig
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.run_dir.paths import complete_checkpoints
from tests.helpers import mtp_oracle
from tests.helpers.breadth import slow
from tests.helpers.families import family_config, train_family
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import LENGTH, ROWS, VOCABULARY, build_engine, save, whole, whole_state

TOLERANCE = 1e-5
DENSE = {"family": "llama", "positions": "rotary"}


def _config(depths: int, family: str = "llama", **sections: Any) -> RunConfig:
    mtp = {"num_layers": depths, "loss_scaling_factor": 0.3}
    model = {"mtp": mtp} | sections.pop("model", {})
    return family_config(family, model=model, **sections)


def _documents() -> list[list[list[int]]]:
    """Documents of each row, of 1 and 2 labels too, and of one row that is full."""
    random = np.random.default_rng(0)
    pairs = [[9, 1, 2, 14], [LENGTH], [3, 3, 20], [1, 1, 1, 5], [30, 2], [16, 16], [2], [7, 8, 9]]
    return [[random.integers(0, VOCABULARY, count + 1).tolist() for count in row] for row in pairs]


def _rows() -> Rows:
    """The same, packed."""
    tokens, labels = np.full((ROWS, LENGTH), 7), np.full((ROWS, LENGTH), 9)
    documents = np.full((ROWS, LENGTH), -1)
    for row, texts in enumerate(_documents()):
        at = 0
        for number, text in enumerate(texts):
            there = slice(at, at + len(text) - 1)
            tokens[row, there], labels[row, there], documents[row, there] = text[:-1], text[1:], number
            at = there.stop
    return Rows(tokens, labels, (documents >= 0).astype(np.float32), documents=documents)


def _step(engine: MegatronEngine, rows: Rows, step: int = 1) -> Any:
    """One step of this data rank's part of `rows`."""
    count = ROWS // engine.data_world
    mine = rows[slice(engine.data_rank * count, (engine.data_rank + 1) * count)]
    ids = np.zeros((ROWS, 3), np.int64)
    columns = {name: values for name, _, values in mine.columns()}
    return engine.train_step(Batch(**columns, sample_ids=ids, cursor=Cursor(0, "f")), 1e-3, step)


def _packed(depths: int, parallel: dict[str, Any]) -> Any:
    """Weights, terms and gradients of a step of packed documents."""
    sections: dict[str, Any] = {"objective": {"packing": "best_fit"}, "optimizer": {"clip_norm": 1e6}}
    engine = build_engine(_config(depths, model=DENSE, parallel=parallel, **sections))
    engine.keeps_gradients = True
    weights = whole_state(engine)
    result = _step(engine, _rows())
    return weights, result.terms, result.loss_sum / result.token_count, whole(engine.gradients())


@pytest.mark.parametrize("depths", [1, 2])
def test_loss_and_gradients_are_those_of_the_paper(depths: int) -> None:
    """In packed rows, whose documents end where nothing follows."""
    weights, terms, loss, gradients = run_ranks(1, _packed, depths, {})[0]
    model = _config(depths, model=DENSE).model
    named = {
        name.removeprefix("model/"): torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in weights.items()
        if name.startswith("model/")
    }
    documents = [text for texts in _documents() for text in texts]
    found = mtp_oracle.losses(model, named, documents)
    expected = mtp_oracle.loss(model, found)
    expected.backward()
    for (total, count), (sum_, labels) in zip(found, terms.values(), strict=True):
        assert labels == count
        assert abs(sum_ / labels - float(total.detach()) / count) <= TOLERANCE
    assert abs(loss - float(expected.detach())) <= TOLERANCE
    assert gradients.keys() == {f"gradient/{name}" for name in named}
    for name, value in named.items():
        assert value.grad is not None, name
        apart = np.linalg.norm(gradients[f"gradient/{name}"] - value.grad.numpy()) / value.grad.norm()
        assert apart <= TOLERANCE, name


def _run(config: RunConfig) -> Any:
    """Initial weights, and of two steps losses and gradient norms, terms of the second, and its gradients."""
    engine = build_engine(config)
    engine.keeps_gradients = True
    first = whole_state(engine)
    curve = train_family(engine, range(1, 2))
    result = _step(engine, _rows() if config.objective.columns else _plain(), 2)
    curve.append((result.loss_sum / result.token_count, result.grad_norm))
    terms = {name: (value / count, count) for name, (value, count) in result.terms.items()}
    return first, curve, terms, whole(engine.gradients())


def _plain() -> Rows:
    random = np.random.default_rng(5)
    spans = random.integers(0, VOCABULARY, (ROWS, LENGTH + 1))
    return Rows.of(spans[:, :-1].copy(), spans[:, 1:].copy())


def _runs(parallels: list[dict[str, Any]], depths: int, family: str, sections: dict[str, Any]) -> list[Any]:
    found = []
    for parallel in parallels:
        found.append(_run(_config(depths, family, parallel=parallel, **sections)))
        meet_again()
    return found


def _check_same(found: Any, expected: Any) -> None:
    (first, curve, terms, gradients), (first_1, curve_1, terms_1, gradients_1) = found, expected
    assert first.keys() == first_1.keys()
    for name, value in first_1.items():
        assert np.array_equal(first[name], value), name
    assert np.abs(np.array(curve) - np.array(curve_1)).max() <= TOLERANCE
    for name, (mean, count) in terms_1.items():
        assert terms[name][1] == count, name
        assert abs(terms[name][0] - mean) <= TOLERANCE, name
    for name, value in gradients_1.items():
        assert np.linalg.norm(gradients[name] - value) <= 1e-4 * np.linalg.norm(value), name


PACKED = {"objective": {"packing": "best_fit"}}
LAYOUTS = [
    {"pipeline": 2, "tensor": 2, "sequence": True, "recompute": "full"},
    {"context": 2, "pipeline": 2},
    {"context": 2, "tensor": 2, "sequence": True},
    {"pipeline": 2, "virtual": 2, "zero": 1},
    {"pipeline": 4, "recompute": "selective"},
    {"zero": 1, "zero_engine": "deepspeed", "tensor": 2},
    {"zero": 2, "zero_engine": "deepspeed", "pipeline": 2},
    {"zero": 3, "zero_engine": "deepspeed", "pipeline": 2},
    {"zero": 3, "zero_engine": "deepspeed", "recompute": "full"},
]
EXPERT_LAYOUTS = [
    {"expert": 2, "zero": 1},
    {"expert": 2, "pipeline": 2, "virtual": 2},
    {"expert": 4, "zero": 0},
    {"expert": 4, "expert_tensor": 1, "tensor": 2, "sequence": True},
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("family", "layouts", "sections"),
    [
        ("llama", LAYOUTS[:1], PACKED),
        slow(("llama", LAYOUTS[1:], {})),
        slow(("llama", LAYOUTS[1:], PACKED)),
        slow(("gemma", LAYOUTS, {})),
        slow(("bloom", LAYOUTS[:4], {})),
        slow(("biased_experts", [*LAYOUTS, *EXPERT_LAYOUTS], PACKED)),
        slow(("shared_experts", [*LAYOUTS, *EXPERT_LAYOUTS], {})),
        slow(("deepseek_v3", LAYOUTS, {})),
    ],
)
def test_every_layout_is_the_same_run(family: str, layouts: list[dict[str, Any]], sections: dict[str, Any]) -> None:
    (expected,) = run_ranks(1, _runs, [{}], 2, family, sections)[0]
    assert {"tokens", "mtp_1", "mtp_2"} <= expected[2].keys()
    for found in run_ranks(4, _runs, layouts, 2, family, sections, timeout_s=600)[0]:
        _check_same(found, expected)


def _curve(config: RunConfig) -> Any:
    engine = build_engine(config)
    return train_family(engine, range(1, 4)), whole_state(engine)


def _curves() -> list[Any]:
    found = []
    for family in ("llama", "deepseek_v3"):
        for mtp in (None, {"num_layers": 1, "loss_scaling_factor": 0.0}):
            found.append(_curve(family_config(family, model={"mtp": mtp})))
            meet_again()
    return found


def test_without_weight_it_leaves_the_run_as_it_is() -> None:
    """To the bit: losses, norms and weights of a run without it, whose routers add no terms to the loss."""
    for (curve, state), (other, more) in zip(*[iter(run_ranks(1, _curves)[0])] * 2, strict=True):
        assert other == curve
        assert more.keys() > state.keys()
        for name, value in state.items():
            if name != "router/chosen":  # of another layer, too
                assert np.array_equal(more[name], value), name


def _recomputed() -> list[Any]:
    found = []
    for recompute in ("none", "full"):
        engine = build_engine(_config(2, parallel={"recompute": recompute}))
        found.append(train_family(engine, range(1, 4)))
        meet_again()
    return found


def test_recomputing_activations_changes_nothing() -> None:
    plain, recomputed = run_ranks(1, _recomputed)[0]
    assert recomputed == plain


def _score(parallel: dict[str, Any]) -> list[Any]:
    found = []
    for mtp in (None, {"num_layers": 1}):
        engine = build_engine(
            family_config("llama", model={"mtp": mtp}, parallel=parallel, objective=PACKED["objective"])
        )
        count = ROWS // engine.data_world
        mine = slice(engine.data_rank * count, (engine.data_rank + 1) * count)
        found.append(engine.score(_rows()[mine]))
        meet_again()
    return found


def test_what_is_scored_is_the_next_token_alone() -> None:
    plain, further = run_ranks(1, _score, {})[0]
    assert np.array_equal(plain.log_probability, further.log_probability)
    assert not further.terms


FAULTS = {
    "context ranks shift their own slices": {"context": 2},
    "documents run into each other": {},
    "the count is that of next tokens": {},
    "no gradient returns to the embedding": {"pipeline": 2},
    "the module reads its own token": {},
}


def _with_fault(fault: str, parallel: dict[str, Any]) -> Any:
    if fault:
        _plant(fault)
    return _packed(2, parallel)


def _plant(fault: str) -> None:
    from dataclasses import replace

    from pretrain.engine.megatron import micro_batches
    from pretrain.models import mtp_tokens
    from pretrain.models.multi_token_prediction import MtpLayer
    from pretrain.objectives.further_tokens import FurtherTokens

    rows_of, cutter = mtp_tokens.mtp_rows, micro_batches.Cutter
    if fault == "context ranks shift their own slices":

        def of_slice(self: Any, batch: Rows, local: slice, depths: int) -> Any:
            assert batch.documents is not None
            own = Rows(
                *(x[:, local] for x in (batch.tokens, batch.labels, batch.loss_mask)),
                documents=batch.documents[:, local],
            )
            return further(self, own, slice(None), depths)

        further = cutter._further
        cutter._further = of_slice  # type: ignore[method-assign]
    elif fault == "documents run into each other":
        micro_batches.mtp_rows = lambda rows, depths: rows_of(replace(rows, documents=None), depths)
    elif fault == "the count is that of next tokens":
        counts = FurtherTokens.counts
        FurtherTokens.counts = lambda self, rows: [counts(self, rows)[0]] * 3  # type: ignore[method-assign]
    elif fault == "no gradient returns to the embedding":
        forward = MtpLayer.forward
        MtpLayer.forward = lambda self, x, embeddings, inputs: forward(  # type: ignore[method-assign]
            self, x, embeddings.detach(), inputs
        )
    elif fault == "the module reads its own token":
        micro_batches.mtp_rows = lambda rows, depths: replace(
            rows_of(rows, depths), tokens_RDS=np.stack([rows.tokens] * depths, axis=1)
        )
    else:
        raise AssertionError(fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(fault: str) -> None:
    """In the loss, or in the gradient of the embedding."""

    def of(fault: str) -> tuple[float, np.ndarray]:
        parallel = FAULTS[fault] if fault else {}
        _, _, loss, gradients = run_ranks(2 if parallel else 1, _with_fault, fault, parallel)[0]
        return loss, gradients["gradient/embedding.word_embeddings.weight"]

    (loss, gradient), (wrong, wrong_gradient) = of(""), of(fault)
    apart = np.linalg.norm(wrong_gradient - gradient) / np.linalg.norm(gradient)
    assert abs(wrong - loss) > 10 * TOLERANCE or apart > 1e-2


def _saved(directory: Path, parallel: dict[str, Any], precision: str) -> dict[str, np.ndarray]:
    engine = build_engine(_config(2, "biased_experts", parallel=parallel, precision=precision))
    train_family(engine, range(1, 3))
    save(directory, engine, 2)
    return whole_state(engine)


def _resumed(directory: Path, parallel: dict[str, Any], precision: str) -> Any:
    engine = build_engine(_config(2, "biased_experts", parallel=parallel, precision=precision))
    _load(directory, engine)
    return whole_state(engine), train_family(engine, range(3, 5))


def _load(directory: Path, engine: MegatronEngine) -> None:
    store.load(complete_checkpoints(directory)[-1], engine.state(), None)
    engine.state_loaded(2)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_moves_to_another_layout(precision: str, tmp_path: Path) -> None:
    """Its state to the bit, and steps that follow within rounding."""
    layout = {"pipeline": 2, "virtual": 2, "zero": 1}
    state = run_ranks(4, _saved, tmp_path, layout, precision)[0]
    assert any(name.startswith("exp_avg/mtp.layers.1.") for name in state)
    assert "model/mtp.layers.1.transformer_layer.mlp.router.bias" in state
    curves = []
    for ranks, parallel in (
        (4, layout),
        (1, {}),
        (4, {"tensor": 2, "sequence": True, "zero": 3, "zero_engine": "deepspeed"}),
    ):
        moved, curve = run_ranks(ranks, _resumed, tmp_path, parallel, precision)[0]
        for name, value in state.items():
            assert np.array_equal(moved[name], value), name
        curves.append(np.array(curve))
    for curve in curves[1:]:
        assert np.abs(curve - curves[0]).max() <= (TOLERANCE if precision == "fp32" else 2e-2)
