"""The verbs of `pretrain VERB`, the `main` of each, and the message for an unknown one."""

from collections.abc import Callable
from importlib import import_module

from data_pipeline.common.suggestions import close_matches, did_you_mean

MODULES = {
    "data": "data",
    "train": "train",
    "eval": "eval",
    "finetune": "finetune",
    "verify": "verify",
    "compare": "compare",
    "replay": "replay",
    "export": "export",
    "import": "import_",
    "translate": "translate",
    "generate": "generate",
    "features": "features",
    "lm-eval": "lm_eval",
    "launch": "launch",
    "runs": "runs",
    "plot": "plot",
    "profile": "profile",
    "keys": "keys",
    "completion": "completion",
    "plan": "plan",
    "rehearse": "rehearse",
    "scale": "scale",
}
"""verb -> file in `commands/`"""
BELOW = {
    "eval": {"fetch": "eval_fetch", "report": "eval_report"},
    "finetune": {"fetch": "finetune_fetch"},
    "plan": {"attention": "plan_attention", "calibrate": "plan_calibrate", "data": "plan_data"},
}
"""verb that is also a command without a second word -> second word -> file in `commands/`"""


def unknown(verb: str) -> str | None:
    """The message for a word that is not a verb; None for a verb."""
    if verb in MODULES:
        return None
    hint = did_you_mean(close_matches(verb, MODULES), f"known are {', '.join(MODULES)}")
    return f"unknown command '{verb}': {hint}"


def command(module: str) -> Callable[[list[str]], int]:
    """`main` of a file in `commands/`. Imports this file alone, as most need seconds."""
    main: Callable[[list[str]], int] = import_module(f"pretrain.commands.{module}").main
    return main


def command_below(verb: str, argv: list[str]) -> Callable[[list[str]], int] | None:
    """`main` of the second word that `argv` of a verb of `BELOW` begins with; None if it begins with another. A config
    file of such a name is given as `./data`."""
    module = BELOW[verb].get(argv[0]) if argv else None
    return None if module is None else command(module)
