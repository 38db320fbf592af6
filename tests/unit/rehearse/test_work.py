"""Evaluation and generation on a `cuda` device that is not there: the host waits once for a batch or a token, the cache
is as large as the texts, and ranks agree on their exchanges."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch

from pretrain.attention.cache import LayerCache
from pretrain.checkpoint.state import SCORING_OVERRIDES
from pretrain.commands.rehearse import main
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.plan.device import find_device
from pretrain.rehearse.rank import rehearse_rank
from pretrain.rehearse.rank_rehearsal import CACHE, RankRehearsal
from pretrain.rehearse.report import as_json, lines
from pretrain.rehearse.run import Rehearsal, rehearse
from pretrain.rehearse.work import What, plan_work
from tests.helpers.breadth import slow

H100 = find_device("h100")
FAMILIES = ("albert", "bart", "bert", "gpt", "roberta", "roformer", "sparse-transformer", "t5", "transformer")
ENCODERS = ("albert", "bert", "roberta", "roformer")
RESULTS = ("copy from cuda to cpu at pretrain/engine/megatron/", "tolist at pretrain/engine/megatron/engine.py")
"""of log probabilities, and of sums for further terms of the loss"""
MEETING = (0, 1, 4)
"""both tensor ranks of the first stage, and one of the last stage"""


def config(name: str, *overrides: str) -> RunConfig:
    return load(
        RunConfig,
        name,
        ["run.dir=unused", "precision=bf16", "model.vocabulary=1000", *SCORING_OVERRIDES, *overrides],
    )


@cache
def rehearsed(
    what: What, name: str, *overrides: str, ranks: tuple[int | str, ...] = ("first", "last"), sequences: int | None = 4
) -> Rehearsal:
    """A rehearsal without problems, made once for all tests."""
    found = rehearse(config(name, *overrides), 8, ranks=ranks, device=H100, per_node=8, what=what, sequences=sequences)
    assert found.problems == []
    return found


def assert_waits_for_results_alone(found: Rehearsal) -> None:
    """Once for each of the results of a batch or a token, never in a prefill; every operator has a kernel."""
    for rank in found.ranks:
        assert rank.without_kernel == {}
        for part in rank.parts:
            assert all(cause.startswith(RESULTS) and count == 1 for cause, count in part.waits.items()), part
            assert not part.waits or not part.name.startswith("prefill")


@pytest.mark.parametrize("name", ["debug/gpt", slow("debug/t5")])
def test_the_host_waits_once_for_a_token(name: str) -> None:
    found = rehearsed("generate", name, ranks=MEETING if name == "debug/gpt" else ("first", "last"))
    assert_waits_for_results_alone(found)
    for rank in found.ranks:
        tokens = [part for part in rank.parts if "token" in part.name]
        assert len(tokens) == 4
        assert [sum(part.waits.values()) for part in tokens] == [1, 1, 1, 1]


@pytest.mark.parametrize("name", [slow("debug/gpt"), "debug/t5", slow("debug/bert")])
def test_the_host_waits_for_the_scores_of_a_batch_alone(name: str) -> None:
    assert_waits_for_results_alone(rehearsed("score", name, ranks=MEETING if name == "debug/t5" else ("first", "last")))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_scores_and_those_with_a_decoder_generate(name: str) -> None:
    assert_waits_for_results_alone(rehearsed("score", f"debug/{name}", sequences=None))
    if name not in ENCODERS:
        assert_waits_for_results_alone(rehearsed("generate", f"debug/{name}", sequences=None))


def test_the_cache_is_as_large_as_the_texts() -> None:
    """No room is kept beyond the positions of the model."""
    (rank,) = rehearsed("generate", "debug/gpt", "parallel.pipeline=1", ranks=(0,), sequences=3).ranks
    model = config("debug/gpt").model
    values = model.layers * 2 * model.sequence_length * 3 * model.num_kv_heads * model.dim_per_head
    assert rank.at_peak_bytes[CACHE] == values * 2 // 2  # two bytes for each, on two tensor ranks


@pytest.mark.parametrize(("what", "name"), [("generate", "debug/gpt"), ("score", "debug/t5")])
def test_exchanges_of_ranks_that_meet_agree(what: What, name: str) -> None:
    """Tensor ranks sum, stages send each other activations, and the last one sends its results to all."""
    agreement = rehearsed(what, name, ranks=MEETING).agreement
    assert agreement.disagreements == ()
    assert agreement.neighbours == 1
    assert agreement.messages > 0
    assert agreement.collectives > 0


def _with_host_tensor(what: What) -> RankRehearsal:
    """A rehearsal of an engine whose cache adds a tensor of the host. In a process of its own."""
    extended = LayerCache.extended

    def faulty(*args: Any) -> Any:
        key, value = extended(*args)
        return key + torch.zeros(key.shape[-1]), value

    LayerCache.extended = faulty  # type: ignore[method-assign]
    chosen = config("debug/gpt")
    layout = plan_layout(chosen, 4, trains=False)
    return rehearse_rank(chosen, layout, 0, H100, plan_work(what, 1, chosen, layout))


def test_host_tensors_in_the_cache_are_found() -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([rehearse_rank.__module__])
    with ProcessPoolExecutor(2, context, max_tasks_per_child=1) as pool:
        for rank, action in zip(
            pool.map(_with_host_tensor, ("generate", "score")), ("read its prompts", "score a batch"), strict=True
        ):
            assert rank.problem is not None
            assert rank.problem.startswith(f"rank 0 cannot {action}: FakeTensorDeviceMismatchError")


def test_the_report_has_a_row_for_each_part() -> None:
    found = rehearsed("generate", "debug/gpt", ranks=MEETING)
    text = "\n".join(lines(found, "debug/gpt", "h100"))
    assert "each data rank continues 4 texts at once" in text
    assert (
        "waits of the host in the second token: copy from cuda to cpu at pretrain/engine/megatron/decoding.py" in text
    )
    assert "plan" not in text
    report = as_json(found, "h100")
    assert (report["what"], report["sequences"], report["micro_batches"]) == ("generate", 4, 0)
    assert [part["name"] for part in report["ranks"][0]["parts"]][:2] == ["prefill", "first token"]
    assert report["ranks"][0]["plan"] is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["debug/gpt", "--sequences", "4"], "--sequences is for --what score and generate"),
        (["debug/gpt", "--what", "score", "--micro-batches", "2"], "--micro-batches is for training"),
        (["debug/gpt", "--what", "generate", "--against", "plan"], "the planner counts training alone"),
        (["debug/bert", "--what", "generate"], "a bert model generates no text"),
        (["debug/gpt", "--what", "generate", "parallel.context=2"], "needs parallel.virtual=1 and parallel.context=1"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        main([*arguments, "--gpus", "8"])
