"""Text that is no config is refused in a moment, whatever it would become."""

import os
import sys
import time
from pathlib import Path

import pytest

from pretrain.config.load import validate
from pretrain.config.run_config import RunConfig
from pretrain.config.yaml_text import LARGEST_BYTES, parse, read_text
from pretrain.errors import ConfigError

_BOMB = "a0: &a0 [1, 1, 1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
_MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 5000 + "]" * 5000, "50 levels"),
        ("\n".join(" " * n + "a:" for n in range(5000)), "50 levels"),
        (_BOMB, "100,000 values"),
        ("&a [*a]", "100,000 values"),
        (_MERGES, "merge key"),
        ("a: " + "9" * 5000, "digits"),
        ("a: 2020-13-45", "month"),
        ("a: !!python/object:os.system x", "tag"),
        ("a: !!int x", "x"),
        ('a: "\\U00110000"', "not valid YAML"),
        ("a: [", "line 1"),
        ("a: 1\na: 2", "duplicate"),
    ],
)
def test_what_no_person_wrote_is_refused_at_once(text: str, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(ConfigError, match=words) as refused:
        parse(text, "some.yaml")
    assert str(refused.value).startswith("some.yaml")
    assert time.monotonic() - started < 20


def test_aliases_that_a_person_wrote_are_read() -> None:
    assert parse("a: &x {b: 1e9}\nc: [*x, *x]", "some.yaml") == {"a": {"b": 1e9}, "c": [{"b": 1e9}, {"b": 1e9}]}


def test_a_file_that_is_too_large_or_endless_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_bytes(b"#" * (LARGEST_BYTES + 1))
    with pytest.raises(ConfigError, match="at most 1,048,576 bytes"):
        read_text(tmp_path / "large.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path / "pipe.yaml", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="a config is a regular file"):
            read_text(path)
    with pytest.raises(ConfigError, match="Is a directory"):
        read_text(tmp_path)


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("ascii", r"override run.dir has characters that the locale \(LANG=C, ascii\) cannot read: set LANG=C.UTF-8"),
        ("utf-8", "override run.dir is not text in UTF-8"),
    ],
)
def test_an_override_that_the_locale_cannot_read_names_it(
    monkeypatch: pytest.MonkeyPatch, encoding: str, words: str
) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: encoding)
    for name in ("LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "C")
    read = "run.dir=ünï".encode().decode("ascii", "surrogateescape")  # as Python does
    with pytest.raises(ConfigError, match=words):
        validate(RunConfig, {}, "config", [read])
