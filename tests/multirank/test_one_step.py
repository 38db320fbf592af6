"""docs/one-step.md says what the engine does in a step, in which order, and what ranks exchange: this runs it."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch.distributed as dist
from megatron.core.distributed import param_and_grad_buffer
from torch import Tensor

from data_pipeline.batch import Rows
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "one-step.md").read_text(encoding="utf-8")
SETTINGS = [
    "parallel={tensor: 1, pipeline: 1}",
    "precision=fp32",
    "model.sequence_length=64",
    "batch.micro_sequences=2",
]
SETTINGS_OF = ("pretrain/config/", "data_pipeline/recipes/")
ROW = re.compile(r"^\| \d+\. \w+ \| `([\w/.]+)::(\w+\.)?(\w+)` \| ([^|]*?) ?\|", re.MULTILINE)
"""A stage of the page: file, class with a dot, function, exchange."""


def _trace(stages: list[tuple[str, str]]) -> tuple[list[tuple[str, str, str]], float, int, float, int, set[str]]:
    """The first call of each of these methods (file, name) in the second step, in order, with what is exchanged before
    the next; loss, tokens, norm, parameters; the files of settings that the step read."""
    overrides = [*SETTINGS, "model.vocabulary=1024", "data.path=unused"]
    engine = build_engine(load(RunConfig, "debug/gpt", overrides))
    stream = np.random.default_rng(0).integers(0, 1024, (8, 65))
    rows = Rows.of(stream[:, :-1].copy(), stream[:, 1:].copy())[slice(4 * engine.data_rank, 4 * engine.data_rank + 4)]
    engine.train_step(rows, 3e-3, 1)
    found: list[list[str]] = []
    read = set[str]()

    def called(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        path = code.co_filename.removeprefix(f"{ROOT}/")
        known = [one[:2] for one in found]
        if path.startswith(SETTINGS_OF):
            read.add(path)
        if event == "call" and (path, code.co_name) in stages and [path, code.co_name] not in known:
            found.append([path, code.co_name, ""])

    def watched(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def exchange(*arguments: Any, **more: Any) -> Any:
            if dist.get_world_size(more.get("group")) > 1:
                size = max(one.numel() for one in arguments if isinstance(one, Tensor))
                found[-1][2] = f"{kind} of {size:,} numbers"
            return call(*arguments, **more)

        return exchange

    dist.all_reduce = watched("all-reduce", dist.all_reduce)
    for name, kind in (("dist_reduce_scatter_func", "reduce-scatter"), ("dist_all_gather_func", "all-gather")):
        setattr(param_and_grad_buffer, name, watched(kind, getattr(param_and_grad_buffer, name)))
    sys.setprofile(called)
    result = engine.train_step(rows, 3e-3, 2)
    sys.setprofile(None)
    parameters = sum(one.value.numel() for one in engine.parameters)
    order = [(path, name, exchanged) for path, name, exchanged in found]
    return order, result.loss_sum, result.token_count, result.grad_norm, parameters, read


def test_the_page_shows_the_order_the_exchanges_and_the_figures_of_a_step() -> None:
    assert all(setting in PAGE for setting in SETTINGS)
    shown = [(path, name, exchanged) for path, _, name, exchanged in ROW.findall(PAGE)]
    assert len(shown) == 14
    stages = [(path, name) for path, name, _ in shown]
    (order, loss, tokens, norm, parameters, read), _ = run_ranks(2, _trace, stages, timeout_s=200)
    assert order == shown
    assert (
        f"loss {loss:,.1f} summed over {tokens} tokens, {loss / tokens:.3f} for each; gradient norm {norm:.3f}" in PAGE
    )
    assert f"{parameters:,} parameters" in PAGE
    assert read == set(), "what follows from settings is found where an engine is built"
