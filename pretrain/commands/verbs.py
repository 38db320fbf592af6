"""The verbs of `pretrain VERB`, and the message for an unknown one."""

from data_pipeline.common.suggestions import close_matches, did_you_mean

MODULES = {
    "data": "data",
    "train": "train",
    "eval": "eval",
    "verify": "verify",
    "compare": "compare",
    "export": "export",
    "import": "import_",
    "translate": "translate",
    "generate": "generate",
    "lm-eval": "lm_eval",
    "launch": "launch",
    "keys": "keys",
    "plan": "plan",
    "scale": "scale",
}
"""verb -> file in `commands/`"""


def unknown(verb: str) -> str | None:
    """The message for a word that is not a verb; None for a verb."""
    if verb in MODULES:
        return None
    hint = did_you_mean(close_matches(verb, MODULES), f"known are {', '.join(MODULES)}")
    return f"unknown command '{verb}': {hint}"
