"""`pretrain keys [PATTERN] [--build] [--json]`: the keys of a config, read from its sections."""

import json
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pretrain.commands.arguments import Parser
from pretrain.commands.output import print_lines
from pretrain.config.keys import Key, keys, matching_keys

_WIDTH = 100


def main(argv: list[str]) -> int:
    """Prints the keys that match by name, ours or another system's, or else by description. Raises ConfigError with
    similar names if none does."""
    parser = Parser(
        "keys",
        "Lists the keys of a config: type, bounds, choices, default, meaning.",
        ("", "optimizer", "'*dropout'", "lr", "lion", "'save interval'", "learning_rate --json", "--build tokenizer"),
    )
    parser.add_argument(
        "pattern",
        nargs="?",
        help="Part of a key, a pattern with * and ?, another system's name (lr, num-layers), a value (lion), or words "
        "of the description (default: every key).",
    )
    parser.add_argument(
        "--build", action="store_true", help="List the keys of `pretrain data build` rather than those of training."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON, a list with an object for each key.")
    options = parser.parse(argv)
    every = _build_keys() if options.build else _run_keys()
    matches = every if options.pattern is None else matching_keys(every, options.pattern)
    if options.json:
        print_lines([json.dumps([asdict(key) for key in matches], indent=1)])
    else:
        print_lines(_shown(key) for key in matches)
    return 0


def _run_keys() -> list[Key]:
    from pretrain.config.run_config import RunConfig

    return keys(RunConfig)


def _build_keys() -> list[Key]:
    from data_pipeline.build.config import BuildConfig
    from data_pipeline.steps.base import Step
    from data_pipeline.steps.registry import STEPS

    return keys(BuildConfig, {Step: STEPS})


def _shown(key: Key) -> str:
    """Lines of a key: type, default and description."""
    kind = f"one of {', '.join(map(_text, key.choices))}" if key.choices else key.type
    default = "required" if key.required else f"default {_text(key.default)}"
    only = f"; with {key.of} = {' or '.join(key.only)}" if key.only else ""
    indent = "    "
    lines = [f"{kind}; {default}{only}", key.description]
    wrapped = [textwrap.fill(line, _WIDTH, initial_indent=indent, subsequent_indent=indent) for line in lines]
    return "\n".join([key.dotted, *wrapped])


def _text(value: Any) -> str:
    """A value as it is written in YAML."""
    if value is None:
        return "absent"
    return str(value) if isinstance(value, str | Path) and value else json.dumps(value, ensure_ascii=False)
