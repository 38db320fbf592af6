"""The rnn family: loss and gradients are those of torch's own cells with attention written out, each row alone without
its padding; ranks, ZeRO stages and recomputation change nothing; a run moves to another layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_pipeline.batch import Batch, Cursor, Rows
from tests.helpers.breadth import slow
from tests.helpers.families import train_family
from tests.helpers.hf import randomise, save, tokenizer_for
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.recurrent import Oracle, language_model_config, translator_config
from tests.helpers.tiny import LENGTH, ROWS, VOCABULARY, build_engine, whole_state

STEPS, TOLERANCE = 3, 1e-5
TARGETS = LENGTH // 2
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2+zero1": {"zero": 1},
    "dp2+recompute": {"zero": 0, "recompute": "full"},
    "dp2+zero3": {"zero": 3, "zero_engine": "deepspeed"},
}
MORE: dict[str, dict[str, Any]] = {
    "dp2+zero1+deepspeed": {"zero": 1, "zero_engine": "deepspeed"},
    "dp2+zero2": {"zero": 2, "zero_engine": "deepspeed"},
    "dp2+zero3+recompute": {"zero": 3, "zero_engine": "deepspeed", "recompute": "full"},
}
DROPPED = {"model": {"dropout": 0.2}}


def _batch(translates: bool) -> Batch:
    """Sources of all lengths, padded at the end, and targets; or texts alone."""
    random = np.random.default_rng(5)
    source = random.integers(0, VOCABULARY, (ROWS, LENGTH))
    text = random.integers(0, VOCABULARY, (ROWS, (TARGETS if translates else LENGTH) + 1))
    shown = np.arange(LENGTH) < random.integers(1, LENGTH, (ROWS, 1))
    more: dict[str, Any] = {}
    if translates:
        more = {"decoder_tokens": text[:, :-1].copy(), "attention_mask": shown}
    return Batch(
        tokens=source if translates else text[:, :-1].copy(),
        labels=text[:, 1:].copy(),
        loss_mask=np.ones((ROWS, text.shape[1] - 1), np.float32),
        sample_ids=np.zeros((ROWS, 3), np.int64),
        cursor=Cursor(0, ""),
        **more,
    )


def _against_torch(recurrent: dict[str, Any], sizes: dict[str, Any]) -> dict[str, float]:
    """Largest differences: of the loss, and of each parameter's gradient relative to its largest value."""
    translates = sizes.get("encoder_layers", 1) > 0
    make = translator_config if translates else _language_model
    config = make(recurrent, model=sizes)
    config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"clip_norm": 0.0})})
    engine = build_engine(config)
    randomise(engine)
    # So that attention is not even, and its gradients are none of rounding, which a plain cell lets grow.
    scale = 2 if recurrent["cell"] == "tanh" else 4
    for name, part in engine.state().items():
        for piece in part.pieces if name.startswith("model/") else ():
            piece.value.mul_(scale)
    engine.state_loaded(0)
    state = {name: value for name, value in whole_state(engine).items() if name.startswith("model/")}
    weights = {name.removeprefix("model/"): torch.tensor(x, requires_grad=True) for name, x in state.items()}
    engine.keeps_gradients, batch = True, _batch(translates)
    result = engine.train_step(batch, 0.0, 1)
    source = torch.from_numpy(batch.tokens) if translates else None
    read = torch.from_numpy(batch.tokens if batch.decoder_tokens is None else batch.decoder_tokens)
    shown = None if batch.attention_mask is None else torch.from_numpy(batch.attention_mask)
    loss = Oracle(config, weights).loss(source, shown, read, torch.from_numpy(batch.labels))
    loss.backward()
    found = {"loss": abs(result.loss_sum / result.token_count - loss.item())}
    for name, part in engine.gradients().items():
        expected = weights[name.rpartition("/")[2]].grad
        assert expected is not None, name
        got = part.pieces[0].value.float().cpu()
        assert expected.abs().max() > 1e-6, f"{name} has an effect"
        found[name] = float((got - expected).abs().max() / expected.abs().max())
    return found


def _language_model(recurrent: dict[str, Any], model: dict[str, Any]) -> Any:
    return language_model_config(model=model | {"recurrent": recurrent})


@pytest.mark.parametrize(
    ("recurrent", "sizes"),
    [
        ({"cell": "gru", "score": "additive"}, {}),
        ({"cell": "lstm", "score": "general"}, {}),
        slow(({"cell": "lstm", "score": {"name": "additive", "size": 10}, "encoder_size": 20}, {"layers": 3})),
        slow(({"cell": "gru", "score": "concat", "encoder": "backward"}, {})),
        slow(({"cell": "tanh", "score": "dot", "initial_state": "copy"}, {})),
        slow(({"cell": "lstm", "score": {"name": "dot", "input_feeding": False}}, {})),
        slow(({"cell": "lstm", "encoder": "forward"}, {})),
        slow(({"cell": {"name": "lstm", "forget_bias": 0.0}}, {"encoder_layers": 0, "target_length": None})),
        slow(({"cell": "gru"}, {"encoder_layers": 0, "target_length": None})),
    ],
    ids=["bahdanau", "luong", "widths", "concat", "dot", "unfed", "sutskever", "lm-lstm", "lm-gru"],
)  # fmt: skip
def test_loss_and_gradients_are_those_of_torchs_cells(recurrent: dict[str, Any], sizes: dict[str, Any]) -> None:
    found = run_ranks(1, _against_torch, recurrent, sizes)[0]
    assert max(found.values()) < 1e-4, found


def _curves(parallels: list[dict[str, Any]], translates: bool, sections: dict[str, Any]) -> list[Any]:
    found = []
    for parallel in parallels:
        make = translator_config({"cell": "lstm", "score": "general"}, parallel=parallel, **sections)
        config = make if translates else language_model_config(parallel=parallel, **sections)
        found.append(train_family(build_engine(config), range(1, STEPS + 1)))
        meet_again()
    return found


def _departures(layouts: dict[str, dict[str, Any]], translates: bool) -> dict[str, float]:
    expected = np.array(run_ranks(1, _curves, [{}], translates, DROPPED)[0][0])
    assert np.ptp(expected[:, 0]) > 1e-3, "weights change"
    plain = np.array(run_ranks(1, _curves, [{}], translates, {})[0][0])
    assert np.abs(plain - expected).max() > 100 * TOLERANCE, "dropout is at work"
    curves = run_ranks(2, _curves, list(layouts.values()), translates, DROPPED)[0]
    return {name: np.abs(np.array(x) - expected).max() for name, x in zip(layouts, curves, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("translates", [True, False], ids=["translator", "lm"])
def test_it_trains_alike_on_data_ranks_of_both_engines(translates: bool) -> None:
    departures = _departures(LAYOUTS | MORE, translates)
    assert max(departures.values()) <= TOLERANCE, departures


def _saved(parallel: dict[str, Any], tokenizer: Path, directory: Path) -> Any:
    config = translator_config({"cell": "gru", "score": "additive"}, parallel=parallel, **DROPPED)
    engine = build_engine(config)
    before = train_family(engine, range(1, STEPS + 1))
    save(engine, config, tokenizer, directory)
    return before + train_family(engine, range(STEPS + 1, 2 * STEPS + 1))


def _resumed(parallel: dict[str, Any], checkpoint: Path) -> Any:
    from pretrain.checkpoint import store

    engine = build_engine(translator_config({"cell": "gru", "score": "additive"}, parallel=parallel, **DROPPED))
    store.load(checkpoint, engine.state())
    engine.state_loaded(STEPS)
    return train_family(engine, range(STEPS + 1, 2 * STEPS + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "then"), [(1, {}), (2, {"zero": 3, "zero_engine": "deepspeed"})], ids=["one-rank", "dp2+zero3"]
)
def test_it_resumes_from_its_checkpoint_on_another_layout(ranks: int, then: dict[str, Any], tmp_path: Path) -> None:
    expected = run_ranks(2, _saved, {"zero": 1}, tokenizer_for("transformer", tmp_path), tmp_path / "checkpoints")[0]
    found = run_ranks(ranks, _resumed, then, tmp_path / "checkpoints" / "step-00000000")[0]
    assert np.abs(np.array(found) - np.array(expected[STEPS:])).max() <= TOLERANCE


def _attends() -> tuple[np.ndarray, np.ndarray]:
    """Attention weights of two rows, and of the first of them alone, without its padding."""
    engine = build_engine(translator_config({"cell": "lstm", "score": "general"}), train=False)
    randomise(engine)
    batch = _batch(True)
    assert batch.attention_mask is not None
    length = int(batch.attention_mask[0].sum())
    both = engine.source_attention(batch[np.arange(2)])
    alone = batch[np.arange(1)]
    shortened = Rows(
        alone.tokens[:, :length], alone.labels, alone.loss_mask, decoder_tokens=alone.decoder_tokens
    )  # fmt: skip
    return both, engine.source_attention(shortened)


def test_attention_weights_are_of_the_words_and_not_of_padding() -> None:
    both, alone = run_ranks(1, _attends)[0]
    assert both.shape == (2, TARGETS, LENGTH)
    assert np.allclose(both.sum(-1), 1, atol=1e-6)
    length = alone.shape[-1]
    assert length < LENGTH
    assert np.all(both[0, :, length:] == 0)
    assert np.allclose(both[0, :, :length], alone[0], atol=1e-6)
