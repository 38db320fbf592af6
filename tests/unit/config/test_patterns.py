"""Settings of attention patterns, and what is refused in one sentence."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from pretrain.config.attention import Attention, Banded, Heads
from pretrain.config.model import Model
from pretrain.config.patterns.bands import LocalGlobal
from pretrain.config.patterns.blocks import BigBird, Blocks
from pretrain.config.patterns.factorized import Fixed, Strided
from pretrain.config.patterns.function import Function
from pretrain.errors import ConfigError


def model(*patterns: object, **fields: object) -> Model:
    shape = {"layers": 2, "hidden": 64, "heads": 4, "sequence_length": 64}
    return Model.model_validate(shape | {"attention": {"pattern": list(patterns)}} | fields)


LONG = {"sequence_length": 2048}
BERT = {"family": "bert", "norm": "post"}
FUNCTIONS = """
def ahead(query, key): return abs(query - key) < 3
def nothing(query, key): return (key <= query) & (query != 7)
def numbers(query, key): return key <= query and query - key < 3
def late(query, key): return (key <= query) & (query != 1800)
def later(query, key): return key <= query and query != 1800
def of_one(query): return True
three = 3
"""


@pytest.mark.parametrize(
    ("pattern", "fields", "sentence"),
    [
        ({"name": "strided", "stride": 64}, {}, "stride=64 reaches nothing far in model.sequence_length=64: choose"),
        ({"name": "fixed", "stride": 90}, {}, "stride=90 reaches nothing far"),
        ({"name": "fixed", "stride": 8, "summary": 3, "variants": 3}, {}, "take 9 positions of a block of stride=8"),
        ({"name": "dilated", "window": 4, "dilation": 64}, {}, "each query would see itself alone"),
        ({"name": "strided", "stride": 8}, BERT, "model.attention.pattern.0 (strided): it is for decoders alone"),
        ({"name": "heads", "of": ["dense", {"name": "fixed", "stride": 8}]}, BERT, "it is for decoders alone"),
        ({"name": "heads", "of": ["dense", "banded", "dense"]}, {}, "model.heads=4 is not a multiple of the 3"),
        ({"name": "bigbird", "window": 2}, {}, "window=2 blocks have no middle one"),
        ({"name": "bigbird", "last": 1}, {}, "last=1 global blocks at the end are an encoder's"),
        ({"name": "bigbird", "first_again": 1}, {}, "first_again=1 is for encoders, whose first block"),
        ({"name": "bigbird", "first": 0, "first_again": 1}, BERT, "with first=0 none is global: set first=1"),
        ({"name": "bigbird", "first_again": 1}, BERT | {"attention_dropout": 0.1}, "first_again counts keys where"),
        ({"name": "function", "function": "no.such:thing"}, {}, "function=no.such:thing cannot be read"),
        ({"name": "function", "function": "functions.py:absent"}, {}, "write package.module:name or path/to"),
        ({"name": "function", "function": "functions.py:ahead"}, {}, "looks ahead: it lets position 0 see position 1"),
        ({"name": "function", "function": "functions.py:nothing"}, {}, "leaves position 7 without a key"),
        ({"name": "function", "function": "functions.py:late"}, LONG, "leaves position 1800 without a key"),
        ({"name": "function", "function": "functions.py:of_one"}, {}, "functions.py:of_one fails (TypeError: of_one()"),
        ({"name": "function", "function": "functions.py:three"}, {}, "three is no function but int"),
        ({"name": "function", "function": "broken.py:three"}, {}, "cannot be read (name 'nowhere' is not defined)"),
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_said(
    pattern: object, fields: dict[str, object], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "broken.py").write_text("three = nowhere\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValidationError) as error:
        model(pattern, **fields)
    assert sentence in error.value.errors()[0]["msg"]


def test_an_encoder_takes_what_both_ways_are_defined_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    patterns = [
        "banded", {"name": "local_global", "window": 8, "tokens": 2}, {"name": "bigbird", "block": 8, "last": 1},
        {"name": "blocks", "block": 8}, {"name": "function", "function": "functions.py:ahead"},
    ]  # fmt: skip
    assert model(*patterns, **BERT).attention.kinds


def test_a_function_of_integers_alone_is_asked_pair_by_pair(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    settings = Function(function=f"{tmp_path}/functions.py:numbers")
    assert settings.mean_keys(10, True) == (1 + 2 + 8 * 3) / 10
    assert not settings.attends(3, 0)


def test_a_function_that_is_asked_pair_by_pair_is_refused_where_its_keys_are_counted(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    settings = Function(function=f"{tmp_path}/functions.py:later")
    settings.check(2048, False, True)
    with pytest.raises(ConfigError, match="leaves position 1800 without a key"):
        settings.mean_keys(2048, True)


def test_settings_are_written_as_they_were_read() -> None:
    written = ["dense", {"name": "strided", "stride": 8, "local": True}, {"name": "heads", "of": ["dense", "banded"]}]
    assert Attention.model_validate({"pattern": written}).model_dump(mode="json")["pattern"] == written


def test_a_shared_window_is_that_of_heads_too() -> None:
    attention = Attention.model_validate({"pattern": [{"name": "heads", "of": ["dense", "banded"]}], "window": 5})
    whole = attention.layer_pattern(0)
    assert isinstance(whole, Heads)
    assert whole.of[1] == Banded(window=5)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Strided(stride=128), Strided(stride=36)),
        (Fixed(stride=128, summary=8, variants=4), Fixed(stride=36, summary=2, variants=4)),
        (Fixed(stride=128, summary=24, variants=4, offset=32), Fixed(stride=36, summary=6, variants=4, offset=12)),
        (LocalGlobal(window=256, tokens=64), LocalGlobal(window=20, tokens=5)),
        (BigBird(block=64), BigBird(block=5)),
        (Heads(of=(Blocks(block=256), Banded(window=256))), Heads(of=(Blocks(block=20), Banded(window=20)))),
    ],
)
def test_a_shorter_sequence_has_narrower_patterns_of_the_same_kind(settings: Strided, expected: Strided) -> None:
    assert settings.scaled(160, 2048) == expected
