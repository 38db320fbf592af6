"""`pretrain finetune fetch`"""

from pretrain.commands.dispatch import dispatch

_MODULES = {
    "fetch": "finetune_fetch",
}
"""verb -> file in `commands/`"""


def main(argv: list[str]) -> int:
    """Fine-tuning: published data sets."""
    return dispatch(
        "finetune",
        _MODULES,
        argv,
        description="Fine-tuning: writes published data sets in the fields that objectives read.",
        examples=("fetch sst2 datasets/sst2",),
    )
