"""Verbs that have verbs of their own, such as `pretrain data build`."""

from collections.abc import Mapping

from pretrain.commands.arguments import Parser
from pretrain.commands.verbs import command


def dispatch(
    verb: str, modules: Mapping[str, str], argv: list[str], *, description: str, examples: tuple[str, ...]
) -> int:
    """Runs the verb that `argv` begins with and returns its exit status. `modules`: verb -> file in `commands/`."""
    parser = Parser(verb, description, examples)
    parser.add_argument(
        "verb", choices=tuple(modules), help=f"Command to run; `pretrain {verb} VERB --help` shows its options."
    )
    return command(modules[parser.parse(argv[:1]).verb])(argv[1:])
