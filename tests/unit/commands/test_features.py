"""Texts of a file, and where their features go, as `pretrain features` reads its command line."""

from pathlib import Path

import pytest

from pretrain.commands.features import _output, _parser, _read
from pretrain.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "content", "lines", "texts"),
    [
        ("a.txt", b"The\nimport", (1, 2), ("The", "import")),
        ("a.txt", b"\xef\xbb\xbfThe\r\nimport\r\n", (1, 2), ("The", "import")),
        ("a.jsonl", b'{"text": "The\\nimport", "id": 7}\r\n\r\n{"text": "a"}\r\n', (1, 3), ("The\nimport", "a")),
    ],
)
def test_a_text_keeps_the_number_of_its_line(
    name: str, content: bytes, lines: tuple[int, ...], texts: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    read, _ = _read(tmp_path / name, None)
    assert (read.lines, read.texts) == (lines, texts)


def test_text_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "question": "b"}\n')
    assert _read(tmp_path / "a.jsonl", "question")[0].texts == ("b",)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"", "a.txt has no texts"),
        ("a.jsonl", b"\n\n", "a.jsonl has no texts"),
        ("a.txt", b"a\n \nb\n", "a.txt line 2 is empty, and an empty text has no vector"),
        ("a.txt", b"a\nb\xff\n", "a.txt line 2 is not text in UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": }\n', "a.jsonl line 2 is not JSON \\(Expecting value at column 10\\)"),
        ("a.jsonl", b'{"text": "\\ud800"}', "a.jsonl line 1 has half a character"),
        (
            "a.jsonl",
            b'{"txt": "a"}',
            "line 1 is not an object with a text 'text'; it has txt: choose a key with --text",
        ),
        ("a.jsonl", b'{"text": 3}', "line 1 is not an object with a text 'text'; it has text"),
        ("a.jsonl", b"[]", "line 1 is not an object with a text 'text': choose a key with --text"),
    ],
)
def test_what_is_no_text_is_refused_by_line(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        _read(tmp_path / name, None)


def test_a_key_without_json_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    with pytest.raises(ConfigError, match="--text question is a key of JSON Lines"):
        _read(tmp_path / "a.txt", "question")


def test_the_default_output_is_beside_the_texts_and_replaces_nothing(tmp_path: Path) -> None:
    options = _parser().parse(["run", str(tmp_path / "a.txt")])
    assert _output(options) == tmp_path / "a.safetensors"
    (tmp_path / "a.safetensors").write_text("")
    with pytest.raises(ConfigError, match=r"a\.safetensors exists: name it with --out to replace it"):
        _output(options)
    named = _parser().parse(["run", str(tmp_path / "a.txt"), "--out", str(tmp_path / "a.safetensors")])
    assert _output(named) == tmp_path / "a.safetensors"


def test_an_output_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"features are written as \.safetensors or \.parquet"):
        _output(_parser().parse(["run", "a.txt", "--out", str(tmp_path / "a.npz")]))
