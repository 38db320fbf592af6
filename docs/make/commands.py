"""Reference page of the commands: what each verb prints for `--help`."""

import contextlib
import io
import os

from pretrain.__main__ import main
from pretrain.commands.verbs import MODULES

_PARTS = {
    "data": ("build", "inspect", "ledger", "trace"),
    "eval": ("", "fetch", "report"),
    "finetune": ("", "fetch"),
    "launch": ("slurm", "build", "local", "status", "logs", "cancel"),
    "plan": ("", "data"),
    "scale": ("ladder", "fit", "predict"),
}
_INTRODUCTION = """# Commands

What `pretrain VERB --help` prints; this page is generated from the code. `key=value` can be given anywhere between
options, any number of times: [training keys](keys.md), [data keys](data-keys.md).

Exit status: 0 done, 1 failed, 2 bad usage or config, 75 stopped by a signal after saving (run the same command to
resume).
"""


def commands_page() -> str:
    """A section for each verb, in Markdown."""
    verbs = [f"{verb} {part}".split() for verb in MODULES for part in _PARTS.get(verb, ("",))]
    sections = [f"## {' '.join(verb)}\n\n```text\n{_help(verb)}\n```\n" for verb in verbs]
    return "\n".join([_INTRODUCTION, *sections])


def _help(verb: list[str]) -> str:
    printed = io.StringIO()
    os.environ["COLUMNS"] = "88"  # as wide as a page
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*verb, "--help"])
    assert printed.getvalue(), verb
    return printed.getvalue().rstrip()
