"""QK-Clip as it runs: weights of heads with too large scores, on every layout, and nothing where there are none."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pretrain.attention.core import CoreAttention
from pretrain.config.run_config import RunConfig
from tests.helpers.breadth import slow
from tests.helpers.families import family_config
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, rows, tiny_config, train, whole_state

STEPS, THRESHOLD = 3, 0.02
"""a threshold that some of the first step's heads have scores above"""
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tensor 2 + sequence": (2, {"tensor": 2, "sequence": True}),
    "context 2": (2, {"context": 2}),
    "pipeline 2 + recompute": (2, {"pipeline": 2, "recompute": "full"}),
    "data 2": (2, {}),
    "data 2, zero 1": (2, {"zero": 1}),
    "data 2, DeepSpeed's zero 1": (2, {"zero": 1, "zero_engine": "deepspeed"}),
    "data 2, zero 2": (2, {"zero": 2, "zero_engine": "deepspeed"}),
    "data 2, zero 3": (2, {"zero": 3, "zero_engine": "deepspeed"}),
    "tensor 4": (4, {"tensor": 4}),
    "tensor 2, context 2": (4, {"tensor": 2, "context": 2}),
    "context 2, data 2, zero 1": (4, {"context": 2, "zero": 1}),
}
QUICK = ["tensor 2 + sequence"]


def _config(threshold: float | None, parallel: dict[str, Any] | None = None, latent: bool = False) -> RunConfig:
    optimizer = {"name": "muon", "learning_rate": 2e-3, "eps": 1e-7, "qk_clip_threshold": threshold}
    if latent:
        return family_config("deepseek_v3", optimizer=optimizer, parallel=parallel or {})
    return tiny_config(model={"kv_heads": 2}, optimizer=optimizer, parallel=parallel or {})


def _runs(parallels: list[dict[str, Any]], latent: bool) -> list[Any]:
    """For each run, (largest score, clipped heads) of every step, and the state afterwards."""
    found = []
    for parallel in parallels:
        engine = build_engine(_config(THRESHOLD, parallel, latent))
        rate, figures = engine.config.optimizer.learning_rate, []
        for step in range(STEPS):
            batch: Any = rows(engine, step, masked=True)
            figures.append(list(engine.train_step(batch, rate, step).figures.values())[:2])
        found.append((np.array(figures), whole_state(engine)))
        meet_again()
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("layouts", [QUICK, slow(list(LAYOUTS))], ids=["some", "all"])
@pytest.mark.parametrize("latent", [False, slow(True)], ids=["heads", "latent"])
def test_every_layout_scales_what_one_rank_scales(layouts: list[str], latent: bool) -> None:
    ((figures, final),) = run_ranks(1, _runs, [{}], latent)[0]
    heads = 16
    assert (figures[:, 1] > 0).all()
    assert (figures[:, 1] < heads).any()
    for layout in layouts:
        world, parallel = LAYOUTS[layout]
        if latent and parallel.get("zero") == 3:
            parallel = parallel | {"zero": 2}
        ((found, state),) = run_ranks(world, _runs, [parallel], latent)[0]
        np.testing.assert_allclose(found[:, 0], figures[:, 0], rtol=1e-4, err_msg=layout)
        np.testing.assert_array_equal(found[:, 1], figures[:, 1], err_msg=layout)
        for name, value in final.items():
            if name.startswith("model/") and not name.endswith("linear_qkv.bias"):
                np.testing.assert_allclose(state[name], value, rtol=0, atol=2e-5, err_msg=f"{layout}: {name}")


def _steps(thresholds: list[float | None]) -> list[Any]:
    """For each threshold, the state after one step, and the scores of each core's heads in it."""
    found = []
    for threshold in thresholds:
        engine = build_engine(_config(threshold))
        scores: dict[int, Tensor] = {}

        def keep(core: CoreAttention, inputs: Any, _: Any, scores: dict[int, Tensor] = scores) -> None:
            """Scores written out, of both micro-batches' rows."""
            q, k = (x.detach().permute(1, 2, 0, 3) for x in inputs[:2])
            k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
            seen = core.heads.mask(q.shape[2], q.shape[2], q.device)
            largest = (q @ k.mT * core.scale).masked_fill(~seen, -torch.inf).amax((0, 2, 3))
            layer = core.heads.layer
            scores[layer] = torch.maximum(scores[layer], largest) if layer in scores else largest

        for module in engine.bare[0].modules():
            if isinstance(module, CoreAttention):
                module.register_forward_hook(keep)
        train(engine, range(1))
        found.append((whole_state(engine), [scores[layer].numpy() for layer in sorted(scores)]))
        meet_again()
    return found


def test_rows_of_heads_are_scaled_after_the_step_and_nothing_else_is() -> None:
    ((without, scores), (same, _), (clipped, _)) = run_ranks(1, _steps, [None, 1e6, THRESHOLD])[0]
    for name, value in without.items():
        np.testing.assert_array_equal(same[name], value, err_msg=name)
    changed = 0
    for name, value in without.items():
        expected = value
        if ".linear_qkv." in name and name.startswith("model/"):
            largest_G = scores[int(name.split("layers.")[1].split(".")[0])].reshape(2, 2).max(1)
            ratio_G = np.minimum(1, THRESHOLD / largest_G)
            changed += int((ratio_G < 1).sum())
            of_head = [(np.sqrt(r), np.sqrt(r), np.sqrt(r), 1) for r in ratio_G]  # two queries, their key and its value
            factors = np.repeat(np.array(of_head, np.float32).flatten(), 16)
            expected = value * factors.reshape(-1, *[1] * (value.ndim - 1))
        np.testing.assert_allclose(clipped[name], expected, rtol=1e-6, atol=1e-9, err_msg=name)
    assert changed > 0
