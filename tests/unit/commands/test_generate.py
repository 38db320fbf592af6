"""Prompts of a file, as `pretrain generate` reads them."""

from pathlib import Path

import pytest

from pretrain.commands.generate import _read
from pretrain.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "content", "prompts"),
    [
        ("a.txt", b"The\nimport", ["The", "import"]),
        ("a.txt", b"\xef\xbb\xbfThe\r\n\r\nimport\r\n", ["The", "", "import"]),
        ("a.jsonl", b'\xef\xbb\xbf{"prompt": "The\\nimport"}\r\n\r\n{"prompt": ""}\r\n', ["The\nimport", ""]),
    ],
)
def test_a_line_is_a_prompt_on_any_system(name: str, content: bytes, prompts: list[str], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert _read(tmp_path / name) == prompts


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"", "has no prompts"),
        ("a.txt", b"a" * 5000 + b"\xff", "is not text in UTF-8 .*can't decode byte 0xff in position 5000"),
        ("a.jsonl", b'{"prompt": "\\ud800"}', "is not JSON lines with a prompt each .*surrogates not allowed"),
        ("a.jsonl", b'{"prompt": 3}', "has a prompt that is no text"),
    ],
)
def test_a_file_without_prompts_is_refused_in_a_short_sentence(
    name: str, content: bytes, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=says) as error:
        _read(tmp_path / name)
    assert len(str(error.value)) < 200 + len(str(tmp_path))


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read \\(Is a directory\\)"):
        _read(tmp_path)
