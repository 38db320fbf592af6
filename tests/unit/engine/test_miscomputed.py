"""Whom the findings of all ranks name, and digests that bits cannot leave unchanged."""

from typing import Any

import pytest
import torch

from pretrain.engine.digest import digest
from pretrain.engine.megatron.miscomputed import RankFinding, explain, explain_replicas
from pretrain.engine.megatron.replay import check_repeats
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.process.rank_location import RankLocation
from tests.helpers.small_configs import config

_GRADIENT = ("decoder.layers.0.mlp.linear_fc1.weight",)


def _findings(layout: Layout, differing: dict[int, dict[str, Any]]) -> list[RankFinding]:
    """Two ranks a node. What is not given does not differ."""
    nothing = {
        "weights": (), "output": None, "own": (), "chunk": -1, "exchanged": (), "wholes": (1, 1, 1), "of_next": None,
    }  # fmt: skip
    return [
        RankFinding(
            rank=rank,
            location=RankLocation(f"n{rank // 2}", rank % 2, 10 + rank),
            coordinates=layout.coordinates(rank),
            **nothing | differing.get(rank, {}),
        )
        for rank in range(layout.world)
    ]


@pytest.mark.parametrize(
    ("layout", "differing", "ranks", "kind"),
    [
        (Layout(world=4), {2: {"own": _GRADIENT, "chunk": 0}}, [2], "computation"),
        (Layout(world=4), {2: {"own": _GRADIENT, "chunk": 0, "output": 0}}, [2], "computation"),
        (  # what a stage computes wrong in the forward pass, the next one reads
            Layout(world=4, pipeline=4),
            {rank: {"own": _GRADIENT, "chunk": 0, "output": None if rank < 1 else 0} for rank in range(4)},
            [1],
            "computation",
        ),
        (  # and in the backward pass, those before it
            Layout(world=4, pipeline=4),
            {rank: {"own": _GRADIENT, "chunk": 0} for rank in range(3)},
            [2],
            "computation",
        ),
        (  # chunks in the order of the model: stage 1's first one is before stage 0's second
            Layout(world=2, pipeline=2, virtual=2),
            {0: {"own": _GRADIENT, "chunk": 1, "output": 1}, 1: {"own": _GRADIENT, "chunk": 1, "output": 0}},
            [1],
            "computation",
        ),
        (
            Layout(world=4, tensor=2),
            {rank: {"own": _GRADIENT, "chunk": 0, "output": 0} for rank in (2, 3)},
            [2, 3],
            "computation",
        ),
        (Layout(world=4), {1: {"weights": _GRADIENT, "own": _GRADIENT, "chunk": 0, "output": 0}}, [1], "weights"),
        (Layout(world=4, zero=2), {0: {"exchanged": _GRADIENT}}, [0], "exchange"),
    ],
)
def test_the_rank_is_named_where_results_first_differ(
    layout: Layout, differing: dict[int, dict[str, Any]], ranks: list[int], kind: str
) -> None:
    error = explain(8, _findings(layout, differing), layout)
    assert (error.facts["step"], error.facts["ranks"], error.facts["kind"]) == (8, ranks, kind)
    assert error.facts["hosts"] == list(dict.fromkeys(f"n{rank // 2}" for rank in ranks))
    assert _GRADIENT[0] in str(error)


def test_a_third_time_and_another_rank_say_which_result_was_wrong() -> None:
    layout = Layout(world=4)
    wrong: dict[int, dict[str, Any]] = {2: {"own": _GRADIENT, "chunk": 0, "wholes": (5, 7, 7)}, 1: {"of_next": 7}}
    assert str(explain(8, _findings(layout, wrong), layout)) == (
        "step 8: rank 2 (n1) computed two results from the same rows and weights "
        "(decoder.layers.0.mlp.linear_fc1.weight). The third time it computed the second again, and "
        "rank 1 (n0) computed the second from these rows. No update was made: a machine is wrong, not the data; run "
        "the same command again without n1"
    )


def test_replicas_that_hold_other_weights_are_named() -> None:
    places = [RankLocation("n0", rank, rank) for rank in range(3)]
    error = explain_replicas(8, places, [("a", [2]), ("b", [2]), ("c", [2]), ("d", [2])])
    assert error.facts == {"step": 8, "kind": "replicas", "ranks": [2], "hosts": ["n0"], "what": "a, b, c and 1 more"}
    assert str(error).endswith("run the same command again"), "there is no other host to go to"


def test_a_step_that_may_give_other_bits_again_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"only with run.deterministic=true: set it, or health.replay_every=0"):
        check_repeats(config(health={"replay_every": 10}), on_gpu=True)
    check_repeats(config(health={"replay_every": 10}), on_gpu=False)
    check_repeats(config(health={"replay_every": 10}, run={"deterministic": True}), on_gpu=True)
    check_repeats(config(), on_gpu=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_every_bit_counts_and_so_does_its_place(dtype: torch.dtype) -> None:
    x = torch.arange(1, 31).to(dtype)
    before = int(digest(x))
    assert int(digest(x.clone().view(5, 6))) == before
    bits = x.view(torch.uint8)
    for place in range(len(bits)):
        for bit in range(8):
            bits[place] ^= 1 << bit
            assert int(digest(x)) != before, (place, bit)
            bits[place] ^= 1 << bit
    assert int(digest(x)) == before
    if dtype != torch.bool:
        assert int(digest(x.flip(0))) != before
