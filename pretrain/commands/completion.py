"""`pretrain completion bash|zsh|fish`"""

import argparse
from collections.abc import Iterator

from data_pipeline.build.config import BuildConfig
from data_pipeline.steps.base import Step
from data_pipeline.steps.registry import STEPS
from pretrain.commands.arguments import Parser, ParserFound, finding_parsers
from pretrain.commands.completion_scripts import SCRIPTS, CompletedCommand, CompletedOption, CompletionWords
from pretrain.commands.output import print_lines
from pretrain.commands.verbs import BELOW, MODULES, command
from pretrain.config.keys import Key, keys
from pretrain.config.run_config import RunConfig
from pretrain.config.shipped import shipped

_OTHERS = ("lm-eval",)
"""verbs whose options are another package's"""
_OF_BUILDS = "data/"
"""folder of the configs of builds; those of clusters are no configs of runs"""


def main(argv: list[str]) -> int:
    """Prints the script."""
    parser = Parser(
        "completion",
        "Prints a script that completes verbs, options, names of configs and config keys with the tab key. Print it "
        "again after an upgrade.",
        (
            "bash > ~/.local/share/bash-completion/completions/pretrain",
            "zsh > ~/.zfunc/_pretrain      # with fpath+=~/.zfunc before compinit in ~/.zshrc",
            "fish > ~/.config/fish/completions/pretrain.fish",
        ),
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="Shell to print the script for.")
    options = parser.parse(argv)
    print_lines(SCRIPTS[options.shell](_words()))
    return 0


def _words() -> CompletionWords:
    """Everything that can be completed. Imports the commands, but not what they import to do their work."""
    names = [name for name in shipped() if not name.startswith("cluster/")]
    of_builds = [name for name in names if name.startswith(_OF_BUILDS)]
    return CompletionWords(
        commands={"": CompletedCommand(words={verb: "" for verb in MODULES}), **dict(commands())},
        configs={"run": [name for name in names if name not in of_builds], "build": of_builds},
        keys={"run": _values(keys(RunConfig)), "build": _values(keys(BuildConfig, {Step: STEPS}))},
    )


def commands() -> Iterator[tuple[str, CompletedCommand]]:
    """Every command with what its parser takes: `plan`, `plan data`, and so on, but for those of other packages."""
    for verb in MODULES:
        if verb in _OTHERS:
            continue
        found = _completed(_parser([verb]), tuple(BELOW.get(verb, ())))
        yield verb, found
        for below in found.words:
            yield f"{verb} {below}", _completed(_parser([verb, below]), ())


def _parser(words: list[str]) -> Parser:
    """The parser of a command."""
    try:
        with finding_parsers():
            command(MODULES[words[0]])(words[1:])
    except ParserFound as found:
        return found.parser
    raise AssertionError(f"{' '.join(words)} parses nothing")


def _completed(parser: Parser, beside: tuple[str, ...]) -> CompletedCommand:
    positional = {action.dest: action for action in parser._actions if not action.option_strings}
    below = positional["verb"].choices if "verb" in positional else ()
    overrides = positional.get("overrides")
    of = None if overrides is None else "build" if "--build" in (overrides.help or "") else "run"
    choices = [
        str(choice)
        for action in positional.values()
        if action.dest != "verb"
        for choice in action.choices or ()
    ]  # fmt: skip
    return CompletedCommand(
        words=dict.fromkeys((*(below or ()), *beside), ""),
        choices=tuple(choices),
        options={action.option_strings[-1]: _option(action) for action in parser._actions if action.option_strings},
        keys_of=of,
        takes_config="config" in positional,
    )


def _option(action: argparse.Action) -> CompletedOption:
    return CompletedOption(
        help=(action.help or "").partition(". ")[0].rstrip("."),
        takes_value=action.nargs != 0,
        choices=tuple(map(str, action.choices or ())),
    )


def _values(every: list[Key]) -> dict[str, tuple[str, ...]]:
    """Keys that can be set on a command line, with the values that can be listed."""
    found: dict[str, tuple[str, ...]] = {}
    for key in every:
        if "[" not in key.dotted and key.type not in ("section", "list of sections"):
            choices = ("true", "false") if key.type == "true or false" else tuple(map(str, key.choices))
            found[key.dotted] = tuple(dict.fromkeys((*found.get(key.dotted, ()), *choices)))
    return found
