"""The tutorial: its commands work one after the other, and print what the page says but for the numbers."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"\b[0-9a-f]{16}\b|\d[\d,.]*(e-?\d+)?")
_SHORTER = {"debug/gpt": "train.steps=40", "--limit": "--limit 4"}
_STOPPED_AT = 10
"""steps"""


def _blocks() -> Iterator[tuple[str, list[str]]]:
    """(commands, the lines that the page shows of what the last of them prints) of each block of commands."""
    commands = None
    for block in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if block.split()[0] in ("pretrain", "python"):
            if commands is not None:
                yield commands, []
            commands = block
        elif commands is not None:
            yield commands, block.splitlines()
            commands = None
    if commands is not None:
        yield commands, []


def _same(line: str) -> str:
    """A line without its numbers, and with one space for several."""
    return " ".join(_NUMBER.sub("#", line).split())


def _run(commands: str, folder: Path) -> str:
    """What commands print, to both streams; a run of 40 steps is stopped after ten, the first time."""
    text = commands.replace("\\\n", " ")
    if " --limit " in text:
        text = re.sub(r"--limit \d+", _SHORTER["--limit"], text)
    if "debug/gpt" in text:
        text = text.replace("debug/gpt", f"debug/gpt {_SHORTER['debug/gpt']}")
    words = shlex.split(text)
    words[:1] = [sys.executable, "-m", "pretrain"] if words[0] == "pretrain" else [sys.executable]
    output, metrics = folder / "output", folder / "runs" / "book" / "metrics.jsonl"
    stops = "train" in words and not metrics.exists()
    to_file = None
    if ">" in words:
        *words, _, to_file = words
    with output.open("w") as printed:
        target = printed if to_file is None else (folder / to_file).open("w")
        process = subprocess.Popen(words, cwd=folder, stdout=target, stderr=subprocess.STDOUT, env=os.environ)
        while stops and process.poll() is None:
            if metrics.exists() and len(metrics.read_text().splitlines()) >= _STOPPED_AT:
                process.send_signal(signal.SIGINT)
                break
            time.sleep(0.2)
        assert process.wait(timeout=600) == (75 if stops else 0), output.read_text()
    return output.read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tutorial_works_and_prints_what_it_says(tmp_path: Path) -> None:
    shown = 0
    for commands, expected in _blocks():
        printed = _run(commands, tmp_path)
        lines = {_same(line) for line in printed.splitlines()}
        for line in expected:
            assert _same(line) in lines, f"the page shows {line!r} of\n{commands}\nwhich prints\n{printed}"
        shown += len(expected)
    assert shown > 10
