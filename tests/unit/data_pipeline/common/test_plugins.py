"""Parts that packages declare: found by name, imported when used, refused in a sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from data_pipeline.common import plugins
from data_pipeline.common.plugins import Registry
from data_pipeline.errors import DataError
from data_pipeline.tokenizers.byte import ByteTokenizer
from data_pipeline.tokenizers.load import load_tokenizer

Declare = Callable[..., None]
GROUP = "pretrain.tests"


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Declare]:
    """Puts a package on the path that has entry points, and a module of that source."""
    monkeypatch.syspath_prepend(tmp_path)
    plugins._declared.cache_clear()

    def declared(package: str, name: str, value: str, group: str = GROUP, source: str = "") -> None:
        metadata = tmp_path / f"{package}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
        (tmp_path / f"{package}_module.py").write_text(source)
        plugins._declared.cache_clear()

    yield declared
    plugins._declared.cache_clear()


def test_a_part_is_imported_when_its_name_is_used(declare: Declare) -> None:
    declare("first", "two", "first_module:TWO", source="TWO = 2")
    declare("broken", "three", "broken_module:THREE", source="raise ImportError('libthree is missing')")
    registry = Registry(GROUP, {"one": 1}, int)
    assert (list(registry), len(registry), "two" in registry, "four" in registry) == (
        ["one", "three", "two"],
        3,
        True,
        False,
    )
    assert (registry["one"], registry["two"], registry.get("four")) == (1, 2, None)
    with pytest.raises(DataError, match=r"'three' .* package broken declares .* cannot be imported \(ImportError: lib"):
        registry["three"]


def test_no_package_takes_a_built_in_name(declare: Declare) -> None:
    declare("greedy", "one", "greedy_module:ONE", source="ONE = 11")
    registry = Registry(GROUP, {"one": 1}, int)
    assert registry["one"] == 1
    with pytest.raises(DataError, match=r"package greedy declares 'one' in pretrain\.tests, .* built-in"):
        list(registry)


def test_parts_of_our_own_that_lie_apart_are_built_in_and_listed_in_their_order(declare: Declare) -> None:
    declare("greedy", "two", "greedy_module:TWO", source="TWO = 22")
    apart = {
        "two": EntryPoint("two", "data_pipeline.common.no_module:TWO", GROUP),
        "six": EntryPoint("six", "math:pi", GROUP),
    }
    registry = Registry(GROUP, {"one": 1.0, "ten": 10.0}, float, apart, ("ten", "six", "absent"))
    assert list(registry.built_in) == ["ten", "six", "one", "two"], "nothing was imported to list them"
    assert registry["six"] == math.pi
    with pytest.raises(DataError, match=r"package greedy declares 'two' in pretrain\.tests, .* built-in"):
        list(registry)


def test_two_packages_do_not_share_a_name(declare: Declare) -> None:
    declare("first", "two", "first_module:TWO")
    declare("second", "two", "second_module:TWO")
    with pytest.raises(DataError, match="packages first and second both declare 'two'"):
        list(Registry(GROUP, {}))


def test_what_is_declared_is_of_the_kind(declare: Declare) -> None:
    declare("third", "two", "third_module:TWO", source="TWO = 'two'")
    with pytest.raises(DataError, match=r"'two' .* is no builtins\.int"):
        Registry(GROUP, {}, int)["two"]


def test_a_name_that_nobody_declares_is_refused() -> None:
    with pytest.raises(DataError, match=r"No installed package declares 'five' in pretrain\.tests"):
        Registry(GROUP, {}, int).require("five")


def test_a_tokenizer_s_file_names_its_kind(declare: Declare, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"tokenizer": "letters", "ids": 3}))
    with pytest.raises(DataError, match="of the kind 'letters', which no installed package adds"):
        load_tokenizer(path)
    source = "from data_pipeline.tokenizers.byte import ByteTokenizer\nread = lambda content: ByteTokenizer()"
    declare("letters", "letters", "letters_module:read", "pretrain.tokenizers", source)
    assert isinstance(load_tokenizer(path), ByteTokenizer)
