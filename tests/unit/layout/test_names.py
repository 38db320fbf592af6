"""Layouts by name."""

import pytest

from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.layout.names import expert_layouts_to_verify, layouts_to_verify, parse_layout, short_name


@pytest.mark.parametrize("world", [1, 2, 4, 6, 8, 16])
def test_reading_is_the_inverse_of_writing(world: int) -> None:
    for layout in (*layouts_to_verify(world), *expert_layouts_to_verify(world)):
        assert parse_layout(str(layout), zero=0) == layout


def test_sizes_left_out_are_one_and_zero_follows_the_config() -> None:
    assert parse_layout("tp2", zero=1) == Layout(world=2, tensor=2), "one data rank shares nothing"
    assert parse_layout("dp4", zero=1) == Layout(world=4, zero=1)
    assert parse_layout("dp4+zero0", zero=1) == Layout(world=4)
    assert parse_layout("tp2cp2", zero=1) == Layout(world=4, tensor=2, zero=1, context=2), "context ranks hold copies"
    assert parse_layout("tp2ep4", zero=1) == Layout(world=8, tensor=2, zero=1, expert=4), "as many as share experts"
    assert parse_layout("cp2ep4", zero=1) == Layout(world=4, context=2, zero=1, expert=4)
    assert parse_layout("ep2dp4", zero=0) == Layout(world=4, expert=2)
    assert parse_layout("tp2ep4etp1", zero=1) == Layout(world=4, tensor=2, zero=1, expert=4, unsplit_experts=True)
    assert parse_layout("tp2ep2etp1", zero=1) == Layout(world=2, tensor=2, expert=2, unsplit_experts=True)
    assert parse_layout("tp2etp1", zero=1) == Layout(world=2, tensor=2, zero=1, unsplit_experts=True), "as experts are"
    assert parse_layout("tp2ep2etp2", zero=0) == Layout(world=4, tensor=2, expert=2)
    assert parse_layout(" tp2pp2dp2+sp+vp2+zero3", zero=1) == Layout(
        world=8, tensor=2, pipeline=2, virtual=2, sequence=True, zero=3, zero_engine="deepspeed"
    )


def test_engine_follows_the_config_where_no_stage_is_named() -> None:
    assert parse_layout("dp4", 2, "deepspeed") == Layout(world=4, zero=2, zero_engine="deepspeed")
    assert parse_layout("dp4+zero1", 2, "deepspeed") == Layout(world=4, zero=1)
    assert parse_layout("dp4+zero1+deepspeed", 0) == Layout(world=4, zero=1, zero_engine="deepspeed")
    assert parse_layout("tp2", 2, "deepspeed") == Layout(world=2, tensor=2)


@pytest.mark.parametrize("text", ["", "tp", "tp0", "2", "sp", "tp2tp2", "tp2+sp+sp", "tp2+vp", "tp2,pp2", "tp2+zero11"])
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a layout: write"):
        parse_layout(text, zero=1)


def test_some_tensor_ranks_cannot_share_an_expert() -> None:
    with pytest.raises(ConfigError, match="'tp4etp2': etp is 1, or as many as tp"):
        parse_layout("tp4etp2", zero=1)


def test_every_kind_of_four_ranks_is_there_once() -> None:
    names = list(map(short_name, layouts_to_verify(4)))
    assert len(set(names)) == len(names)
    data = ("dp4", "tp2dp2", "tp2dp2+sp", "pp2dp2", "pp2dp2+vp2")
    shared = ("", "+zero1", "+zero1+deepspeed", "+zero2", "+zero3")
    assert set(names) == {
        *("tp4", "tp4+sp", "pp4", "pp4+vp2"),
        *("tp2pp2", "tp2pp2+sp", "tp2pp2+vp2", "tp2pp2+sp+vp2"),
        *(layout + stage for layout in data for stage in shared),
        *("cp4+zero1", "tp2cp2+zero1", "tp2cp2+sp+zero1", "cp2pp2+zero1", "cp2dp2+zero1"),
    }
    of_experts = set(map(short_name, expert_layouts_to_verify(4)))
    assert of_experts == {
        *(f"{name}+zero1" for name in ("ep2dp4", "ep4dp4", "tp2ep2dp2", "tp2ep2dp2+sp", "ep2pp2dp2")),
        *(f"tp2{ranks}etp1dp2+sp+zero1" for ranks in ("", "ep2", "ep4")),
        *(f"tp4{ranks}etp1+sp+zero1" for ranks in ("", "ep2", "ep4")),
        *("tp2etp1pp2+sp+zero1", "tp2ep2etp1pp2+sp+zero1"),
        *("tp2ep4etp1dp2+zero1", "tp4ep4etp1+zero1", "tp2ep2etp1pp2+zero1"),
    }
    assert layouts_to_verify(1) == [Layout(world=1)]
    assert short_name(layouts_to_verify(1)[0]) == "one rank"
