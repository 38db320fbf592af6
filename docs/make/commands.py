"""Reference page of the commands: what each verb prints for `--help`."""

import contextlib
import io
import os
from collections.abc import Iterable

from pretrain.__main__ import main
from pretrain.commands.completion import commands
from pretrain.commands.verbs import MODULES

_INTRODUCTION = """# Commands

What `pretrain VERB --help` prints; this page is generated from the code. `key=value` can be given anywhere between
options, any number of times: [training keys](keys.md), [data keys](data-keys.md).

Exit status: 0 done, 1 failed, 2 bad usage or config, 75 stopped by a signal after saving (run the same command to
resume).
"""


def commands_page() -> str:
    """A section for each verb, in Markdown."""
    sections = [f"## {title}\n\n```text\n{_help(name.split())}\n```\n" for name, title in titles().items()]
    return "\n".join([_INTRODUCTION, *sections])


def titles() -> dict[str, str]:
    """Titles of the sections by the name of the command, read from the parsers: a word that a command must be given is
    in its title."""
    found = {name: ", ".join([f"{name} {word}" for word in parsed.choices] or [name]) for name, parsed in commands()}
    return {name: found.get(name, name) for verb in MODULES for name in [verb, *_below(verb, found)]}


def _below(verb: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(f"{verb} ")]


def _help(verb: list[str]) -> str:
    printed = io.StringIO()
    os.environ["COLUMNS"] = "88"  # as wide as a page
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*verb, "--help"])
    assert printed.getvalue(), verb
    return printed.getvalue().rstrip()
