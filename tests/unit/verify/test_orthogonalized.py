"""What Muon's steps may make of a difference of gradients."""

import numpy as np
import torch

from pretrain.config.optimizer import MuonOptimizer
from pretrain.engine.optimizer.newton_schulz import orthogonalize
from pretrain.verify.observation import TensorShard
from pretrain.verify.orthogonalized import Amplification
from tests.helpers.small_configs import config

RATE = 1e-3
RUN = config(optimizer={"name": "muon", "learning_rate": RATE, "adamw_learning_rate": 2e-3})


def _update(gradient: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    """The first update at the rate: momentum scales the gradient, which the norm takes out again."""
    settings, update = RUN.optimizer, np.zeros(gradient.shape)
    assert isinstance(settings, MuonOptimizer)
    for one in rows:
        x = orthogonalize(torch.from_numpy(gradient[one])[None], settings.steps, settings.eps, "fp32")[0].numpy()
        update[one] = RATE * settings.rate_factor(*x.shape) * x
    return update


def test_a_difference_of_gradients_explains_that_of_updates_and_no_other_matrices() -> None:
    amplification = Amplification(RUN)
    name = next(name for name in amplification._blocks if name.endswith("linear_qkv.weight"))
    rows, random = amplification._blocks[name], np.random.default_rng(0)
    shape = (sum(map(len, rows)), RUN.model.hidden)
    # Of low rank, where little is amplified most.
    gradient = (random.normal(size=(shape[0], 4)) @ random.normal(size=(4, shape[1]))).astype(np.float32)
    gradient += 1e-4 * random.normal(size=shape).astype(np.float32)
    other = gradient * (1 + 1e-6 * random.normal(size=shape)).astype(np.float32)
    for _ in range(2):
        amplification.restart()
        amplification.add({name: gradient}, [TensorShard(0, name, (0, 0), other)])
    expected, found = _update(gradient, rows), _update(other, rows)
    explained = amplification.explained(name, RATE)
    assert 0 < np.linalg.norm(found - expected) <= explained
    as_one = _update(gradient, [np.arange(shape[0])])
    assert np.linalg.norm(as_one - expected) > 10 * explained


def test_equal_gradients_explain_nothing_and_what_adamw_updates_has_its_own_rate() -> None:
    amplification = Amplification(RUN)
    name = next(iter(amplification._blocks))
    gradient = np.ones((sum(map(len, amplification._blocks[name])), RUN.model.hidden), np.float32)
    amplification.add({name: gradient}, [TensorShard(0, name, (0, 0), gradient)])
    assert amplification.explained(name, RATE) == 0
    assert amplification.rate_factor(name) == 1
    assert amplification.rate_factor("embedding.word_embeddings.weight") == 2
    assert Amplification(config()).rate_factor("embedding.word_embeddings.weight") == 1
