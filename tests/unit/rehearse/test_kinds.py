"""`--ranks`: each kind of rank that does different work is among those that are rehearsed."""

from collections.abc import Sequence
from io import StringIO
from typing import Any

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, plan_layout
from pretrain.rehearse.kinds import rank_numbers
from pretrain.rehearse.progress import RehearsalProgress
from pretrain.rehearse.rank_rehearsal import RankRehearsal


def coordinates(name: str, gpus: int, *overrides: str) -> tuple[Layout, list[tuple[int, int, int, int]]]:
    config = load(RunConfig, name, ["run.dir=unused", "model.vocabulary=1000", *overrides])
    layout = plan_layout(config, gpus)
    return layout, [layout.coordinates(rank) for rank in rank_numbers(["all-kinds"], config, layout)]


def test_coordinates_and_ranks_are_inverse() -> None:
    layout = Layout(world=48, tensor=2, pipeline=3, context=2)
    assert [layout.rank(*layout.coordinates(rank)) for rank in range(48)] == list(range(48))


def test_all_kinds_are_ends_of_each_axis_and_stages_with_their_neighbours() -> None:
    layout, found = coordinates("gpt3/175b", 1024)
    assert len(found) == len(set(found)) == 2 * 2 * 5
    assert {tensor for tensor, *_ in found} == {0, layout.tensor - 1}
    assert {data for _, _, data, _ in found} == {0, layout.data - 1}
    assert {stage for *_, stage in found} == {0, 1, 2, 14, 15}


@pytest.mark.parametrize(
    ("overrides", "stages"),
    [
        (("parallel.pipeline=4",), {0, 1, 2, 3}),
        # Six stages of a layer each, alternately dense and banded: the inner four are two kinds.
        (("model.layers=6", "parallel.pipeline=6"), {0, 1, 2, 3, 4, 5}),
        (("model.layers=24", "parallel.pipeline=12"), {0, 1, 2, 10, 11}),
    ],
)
def test_stages_of_other_layers_are_of_another_kind(overrides: Sequence[str], stages: set[int]) -> None:
    pattern = ("model.attention.pattern=[dense, banded]", "parallel.tensor=1")
    layout, found = coordinates("debug/gpt", 12, *overrides, *pattern, "batch.sequences=48")
    assert layout.pipeline > 2
    assert {stage for *_, stage in found} == stages


def test_stages_before_those_with_experts_are_of_another_kind() -> None:
    """The first five of eight stages, of a layer each, have no experts."""
    experts = "model.experts={count: 4, top_k: 2, ffn: 64, dense_layers: 5}"
    _, found = coordinates("debug/experts", 8, "model.layers=8", "parallel.pipeline=8", experts)
    assert {stage for *_, stage in found} == {0, 1, 2, 4, 5, 6, 7}


def test_of_ranks_that_share_experts_some_meet_and_some_hold_the_same() -> None:
    layout, found = coordinates("debug/experts", 16, "batch.sequences=64", "parallel.expert=4", "parallel.tensor=1")
    assert layout.data == 16
    assert {data for _, _, data, _ in found} == {0, 1, 4, 15}


def test_both_sides_of_an_encoder_and_its_decoder_are_kinds() -> None:
    model = ("model.encoder_layers=8", "model.layers=8", "parallel.pipeline=8", "parallel.tensor=1")
    _, found = coordinates("debug/t5", 8, *model, "batch.sequences=8")
    assert len({stage for *_, stage in found}) >= 6


def test_heads_of_other_patterns_make_kinds_of_tensor_ranks() -> None:
    pattern = "model.attention.pattern=[{name: heads, of: [dense, banded, {name: strided, stride: 8}, dense]}]"
    _, found = coordinates("debug/gpt", 8, pattern, "parallel.tensor=4", "parallel.pipeline=1", "model.heads=4")
    assert {tensor for tensor, *_ in found} == {0, 1, 2, 3}


def test_ranks_are_named_once_and_must_exist() -> None:
    config = load(RunConfig, "debug/gpt", ["run.dir=unused", "model.vocabulary=1000"])
    layout = plan_layout(config, 8)
    assert rank_numbers([0, "first", 3, "middle", "last"], config, layout) == [0, 3, 6, 7]
    with pytest.raises(ConfigError, match=r"--ranks 8: the run has ranks 0 to 7"):
        rank_numbers([8], config, layout)


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [StringIO(), _Terminal()])
def test_progress_is_a_bar_on_a_terminal_and_lines_in_a_log(stream: Any) -> None:
    progress = RehearsalProgress(stream)
    for rank in (0, 7):
        progress.add(RankRehearsal(rank=rank, coordinates=(0, 0, 0, 0), cpu_s=3.0), 2)
    progress.close()
    if stream.isatty():
        assert "[##########..........] 1 of 2 ranks, about" in stream.getvalue()
        assert "[####################] 2 of 2 ranks" in stream.getvalue()
    else:
        assert stream.getvalue() == "rank 0: 3 s of a core (1 of 2)\nrank 7: 3 s of a core (2 of 2)\n"
