"""Lines that a command prints, or writes to `--out`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pretrain.commands import output
from pretrain.commands.output import print_lines, write_lines
from pretrain.errors import RunError


def test_no_line_is_made_once_nobody_reads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made: list[str] = []

    def lines() -> Iterator[str]:
        for name in "abc":
            made.append(name)
            yield name

    monkeypatch.setattr(output, "is_lost", lambda: len(made) == 2)
    print_lines(lines())
    assert made == ["a", "b"]
    monkeypatch.setattr(output, "is_lost", lambda: False)
    print_lines(lines())
    assert capsys.readouterr().out == "a\nb\na\nb\nc\n"


def test_out_is_written_whole_or_refused_in_a_sentence(tmp_path: Path) -> None:
    write_lines(tmp_path / "out", ["é", "b"])
    assert (tmp_path / "out").read_text(encoding="utf-8") == "é\nb\n"
    with pytest.raises(RunError, match=r"--out .*out/x cannot be written"):
        write_lines(tmp_path / "out" / "x", ["a"])
