"""Parts of models: their keys, and the families that may have them."""

from typing import Annotated, Any

import pytest
from pydantic import Field

from pretrain.config import model
from pretrain.config.families import CAPABILITIES
from pretrain.config.model import Model
from pretrain.config.part_key import PartKey, with_keys
from pretrain.config.parts.registry import PARTS
from pretrain.config.section import Section


class _Own(Section):
    first: int = Field(1, description="one")
    last: int = Field(2, description="two")


class _Settings(Section):
    size: int = Field(gt=0, description="a size")


def test_families_have_parts_that_exist_and_models_their_keys() -> None:
    named = {name for can in CAPABILITIES.values() for name in can.parts}
    further = {name: part.further_families for name, part in PARTS.items() if part.further_families}
    assert named | set(further) == set(PARTS)
    assert {family for families in further.values() for family in families} <= set(CAPABILITIES)
    assert set(PARTS) <= set(Model.model_fields)


def test_a_key_of_a_part_stands_behind_the_one_that_it_follows_and_is_absent_by_default() -> None:
    keys = (PartKey("middle", _Settings, "a part", "first"), PartKey("next", _Settings, "another", "middle"))
    both = with_keys("Both", _Own, keys)
    assert list(both.model_fields) == ["first", "middle", "next", "last"]
    assert both().model_dump() == {"first": 1, "middle": None, "next": None, "last": 2}
    assert keys[0].of(both(middle={"size": 3})) == _Settings(size=3)  # type: ignore[call-arg]  # made as it runs
    with pytest.raises(ValueError, match="elsewhere"):
        with_keys("Lost", _Own, [PartKey("lost", _Settings, "a part", "elsewhere")])


def test_a_key_of_a_package_is_written_out_where_it_is_set_alone() -> None:
    key = PartKey("added", _Settings, "a part", "first")
    both = with_keys("Both", _Own, (), (key,))
    assert list(both.model_fields) == ["first", "added", "last"]
    assert both().model_dump() == {"first": 1, "last": 2}
    assert both(added={"size": 3}).model_dump() == {"first": 1, "added": {"size": 3}, "last": 2}  # type: ignore[call-arg]


def test_keys_behind_the_same_one_stand_in_the_order_in_which_they_are_declared() -> None:
    """Also behind what follows these: none has to know of the others."""
    follows = {"a": "first", "b": "a", "c": "first", "d": "last", "e": "b"}
    keys = [PartKey(name, _Settings, "a part", other) for name, other in follows.items()]
    assert list(with_keys("All", _Own, keys).model_fields) == ["first", "a", "b", "c", "e", "last", "d"]


def test_a_number_is_one_in_models_without_the_part() -> None:
    number: Any = Annotated[int, Field(gt=0)]
    key: PartKey[int] = PartKey("blocks", number, "how many", "first", default=1)
    ours, of_package = with_keys("Ours", _Own, (key,)), with_keys("Theirs", _Own, (), (key,))
    assert ours().model_dump() == {"first": 1, "blocks": 1, "last": 2}
    assert of_package().model_dump() == {"first": 1, "last": 2}
    assert (key.of(ours()), key.of(of_package(blocks=3))) == (None, 3)  # type: ignore[call-arg]  # made as it runs
    with pytest.raises(ValueError, match="greater than 0"):
        ours(blocks=0)  # type: ignore[call-arg]


def test_a_family_with_a_part_that_nobody_declares_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "PARTS", {name: part for name, part in PARTS.items() if name != "mup"})
    with pytest.raises(
        ValueError, match=r"model\.family=gpt is declared with the part 'mup', which no installed package"
    ):
        Model(family="gpt", layers=1, hidden=8, heads=2, sequence_length=4)
