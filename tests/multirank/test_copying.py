"""Positions learn a text whose optimum is known: each token is the one some places before it, so that nothing but the
first few has any entropy. Who only knows which tokens the text has is left with the logarithm of their number."""

from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Batch, Cursor
from pretrain.engine.megatron.engine import MegatronEngine
from tests.helpers import classics
from tests.helpers.breadth import only
from tests.helpers.families import family_config
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import ROWS, build_engine, tiny_config

LENGTH, WORDS = 24, 16
SHAPE = {"sequence_length": LENGTH, "vocabulary": WORDS, "init": {"name": "normal", "std": 0.1}}
GPT = tiny_config().model.model_dump(exclude_none=True) | SHAPE | {"layers": 2, "attention": {}}
KINDS: dict[str, tuple[dict[str, Any], int, int]] = {
    "learned": (GPT, 5, 150),
    "rotary": (GPT | {"positions": "rotary"}, 5, 150),
    **{family: ({"family": family}, 3, 200) for family in classics.names("COPIERS")},
}
"""model, places back, steps"""


def _engine(kind: str) -> MegatronEngine:
    optimizer = {"learning_rate": 3e-3, "weight_decay": 0.0}
    shape, _, _ = KINDS[kind]
    if shape["family"] == "gpt":
        return build_engine(tiny_config(model=shape, optimizer=optimizer, batch={"micro_sequences": ROWS}))
    model = {"sequence_length": LENGTH, "vocabulary": WORDS, "layers": 2, "encoder_layers": 1, "target_length": LENGTH}
    return build_engine(family_config(kind, model=model, optimizer=optimizer, batch={"micro_sequences": ROWS}))


def _text(step: int, lag: int) -> np.ndarray:
    first = np.random.default_rng(step).integers(0, WORDS, (ROWS, lag))
    return np.tile(first, LENGTH // lag + 2)[:, : LENGTH + 1]


def _losses(kind: str) -> list[float]:
    """The loss of each step, over the tokens that earlier tokens determine."""
    engine, (_, lag, steps) = _engine(kind), KINDS[kind]
    found = []
    for step in range(1, steps + 1):
        text = _text(step, lag)
        mask = np.zeros((ROWS, LENGTH), np.float32)
        mask[:, lag - 1 :] = 1
        columns: dict[str, Any] = {"tokens": text[:, :-1], "labels": text[:, 1:], "loss_mask": mask}
        if engine.config.model.is_encoder_decoder:  # whose input says nothing
            columns |= {"decoder_tokens": columns["tokens"], "tokens": np.zeros_like(columns["tokens"])}
            columns["attention_mask"] = np.ones((ROWS, LENGTH), bool)
        ids = np.zeros((ROWS, 3), np.int64)
        batch = Batch(
            **{name: np.ascontiguousarray(x) for name, x in columns.items()}, sample_ids=ids, cursor=Cursor(0, "")
        )
        result = engine.train_step(batch, 3e-3, step)
        found.append(result.loss_sum / result.token_count)
    return found


@pytest.mark.parametrize("kind", only(["rotary"], KINDS))
def test_positions_learn_to_copy(kind: str) -> None:
    losses = run_ranks(1, _losses, kind)[0]
    assert losses[0] > np.log(WORDS) - 0.3
    assert np.mean(losses[-10:]) < 0.3, losses[::10]
