"""`pretrain generate`, on a run that `pretrain train` made."""

import json
import os
import pty
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pretrain.__main__ import main
from tests.helpers import command

DRAWN = ("--temperature", "0.9", "--top-p", "0.95", "--samples", "2", "--max-tokens", "12", "--seed", "5")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_prompts_of_a_file_are_gone_on_with_alike_on_one_rank_and_as_trained(
    uninterrupted: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "The import"}\n{"prompt": "A class\\nhas"}\n{"prompt": ""}\n')
    ways: list[tuple[str, ...]] = [
        (),
        ("--nproc", "2"),
        ("parallel.tensor=1", "--nproc", "2"),
    ]  # also on two data ranks
    found = []
    for number, way in enumerate(ways):
        out = tmp_path / f"{number}.jsonl"
        done = command.run("generate", uninterrupted, "--file", tmp_path / "prompts.jsonl", "--out", out, *DRAWN, *way)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"6 texts of 3 prompts: {out}\n"
        found.append(_lines(out))
    assert [line["prompt"] for line in found[0]] == ["The import"] * 2 + ["A class\nhas"] * 2 + [""] * 2
    assert all(line["tokens"] == 12 or line["ended"] == "stop" for line in found[0])
    assert found[0][0]["text"] != found[0][1]["text"], "two samples"
    scores = [[line.pop("log_probability") for line in lines] for lines in found]
    assert found[1] == found[0] == found[2]
    assert scores[1] == pytest.approx(scores[0], abs=1e-4)
    assert scores[2] == pytest.approx(scores[0], abs=1e-4)


def test_a_prompt_and_its_texts_are_printed(uninterrupted: Path) -> None:
    done = command.run(
        "generate", uninterrupted, "--prompt", "The import", "--prompt", "A", "--beam", "3", "--samples", "2"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[prompt] The import\n[text] ")
    assert done.stdout.count("[text] ") == 4
    assert done.stdout.count("[prompt] ") == 2


def _type(terminal: str) -> None:
    """The terminal as the controlling one of this process, and its standard input."""
    os.setsid()
    os.dup2(os.open(terminal, os.O_RDWR), 0)
    sys.stdin = os.fdopen(0)


def _piped(path: Path) -> None:
    os.dup2(os.open(path, os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0)


def test_what_is_piped_in_is_one_prompt(uninterrupted: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("The import\nstatement\n")
    made = command.Command("generate", uninterrupted, "--max-tokens", 3, first=partial(_piped, tmp_path / "prompt.txt"))
    assert made.wait(60) == 0, made.stderr
    assert made.stdout.startswith("[prompt] The import\nstatement\n[text] ")


def test_lines_are_turns_of_a_conversation_where_the_run_has_a_chat_template(
    uninterrupted: Path, tmp_path: Path
) -> None:
    """The same text as of a prompt that is typed as the template renders it; `--raw` reads lines as they are."""
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    (run / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.role[0] + message.content + '.' }}{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}"
    )
    (tmp_path / "lines.txt").write_text("The import\nstatement\n")

    def answers(*more: str) -> list[str]:
        first = partial(_piped, tmp_path / "lines.txt")
        talk = command.Command("generate", run, "--interactive", "--max-tokens", 3, *more, first=first)
        assert talk.wait(60) == 0, talk.stderr
        return [part.removesuffix("\n") for part in talk.stdout.split("> ")[1:3]]

    def continued(prompt: str) -> str:
        made = command.run("generate", run, "--max-tokens", 3, "--prompt", prompt)
        return str(made.stdout.removeprefix(f"[prompt] {prompt}\n[text] ").removesuffix("\n"))

    first, second = answers()
    assert first == continued("uThe import.a")
    assert second == continued(f"uThe import.a{first.strip()}.ustatement.a")
    assert answers("--raw") == [continued("The import"), continued("statement")]
    assert "--raw says how --interactive reads lines" in command.run("generate", run, "--raw", "--prompt", "a").stderr


def test_on_a_terminal_prompts_are_answered_ctrl_c_drops_a_line_and_ctrl_d_leaves(uninterrupted: Path) -> None:
    master, slave = pty.openpty()
    arguments = ("generate", uninterrupted, "--interactive", "--temperature", "0.8", "--max-tokens", "8")
    talk = command.Command(*arguments, first=partial(_type, os.ttyname(slave)))

    def until(prompts: int) -> str:
        deadline = time.monotonic() + 60
        while talk.stdout.count("> ") < prompts:
            assert talk.poll() is None, talk.printed
            assert time.monotonic() < deadline, talk.printed
            time.sleep(0.05)
        return talk.stdout

    until(1)
    os.write(master, b"The import\n")
    first = until(2)
    os.write(master, b"not meant\x03")
    until(3)
    os.write(master, b"word " * 60 + b"\n")
    assert "the prompt is" in until(4), "and goes on"
    os.write(master, b"The import\n")
    again = until(5)
    os.write(master, b"\x04")
    assert talk.wait(60) == 0, talk.stderr
    os.close(master)
    answers = [text for text in again.split("> ") if text.strip()]
    assert answers[0] == first.split("> ")[1] != answers[-1], "the same prompt again is another draw"
    assert "the model reads 32: shorten it" in answers[-2]
    assert talk.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", "a", "--interactive"], ["--prompt and --interactive", "leave all but one out"]),
        (["--file", "nowhere.txt"], ["--file nowhere.txt cannot be read"]),
        (["--prompt", "a", "--beam", "2", "--top-k", "3"], ["--beam", "--top-k", "leave one out"]),
        (["--prompt", "a", "--beam", "2", "--samples", "3"], ["fewer than --samples 3"]),
        (["--prompt", "a", "--penalty", "1"], ["--penalty", "give --beam N"]),
        (["--prompt", "a", "--temperature", "0", "--top-p", "0.5"], ["--temperature 0", "leave --top-p out"]),
        (["--prompt", "a", "--stop", ""], ["--stop ''", "leave it out"]),
        (["--interactive", "--beam", "2"], ["--interactive", "leave --beam out"]),
        (["--prompt", "a", "--out", "/nowhere/out.jsonl"], ["/nowhere/out.jsonl cannot be written"]),
        (["--prompt", "a", "parallel.context=2", "parallel.tensor=1", "--nproc", "2"], ["parallel.context=1"]),
        (["--prompt", "a", "more text"], ["'more text' is not an override"]),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], words: list[str], uninterrupted: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(uninterrupted), *arguments]) == 2
    error = capfd.readouterr().err
    assert error.startswith("pretrain: ")
    assert error.count("\n") == 1
    for word in words:
        assert word in error


def test_without_a_prompt_it_says_what_to_give(
    uninterrupted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert main(["generate", str(uninterrupted)]) == 2
    assert "give --prompt TEXT, --file FILE or --interactive, or pipe a text in" in capsys.readouterr().err
