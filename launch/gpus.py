"""Hardware by the names that clusters give to GPUs, and the question for it."""

import re

from pretrain.errors import ConfigError
from pretrain.plan.device import device_names, find_device

_OTHER_NAMES = {"h100-80": "h100", "h200-141": "h200", "v100-32": "v100"}
_WITH_TWO_SIZES = ("v100",)
"""Names of features that are also those of GPUs with half of the memory of the hardware of this name."""


def hardware_called(name: str) -> str | None:
    """Hardware that a name of a node's feature or of an accelerator means, such as A100_80GB; None where it is
    not known, or where it is one of several sizes."""
    plain = re.sub(r"(?<=\d)gb?$", "", name.lower().replace("_", "-"))
    known = _OTHER_NAMES.get(plain, plain)
    return known if known in device_names() and plain not in _WITH_TWO_SIZES else None


def hardware_of_constraint(constraint: str) -> str | None:
    """Hardware that all nodes of a Slurm constraint have, of several the one with the least memory. None unless each
    alternative names one."""
    found = []
    for alternative in constraint.split("|"):
        features = re.findall(r"(?<![\w.-])[\w.-]+", re.sub(r"!\s*[\w.-]+|\*\d+", "", alternative))
        named = [hardware for feature in features if (hardware := hardware_called(feature)) is not None]
        if not named:
            return None
        found += named
    return min(found, key=lambda hardware: find_device(hardware).memory_gib)


def unknown_memory(ways: str) -> ConfigError:
    """The question for the memory of a GPU; `ways`: where else than with --hardware it can be said."""
    return ConfigError(
        "how much memory a GPU has is not known, and a run that does not fit would only fail once it has waited for "
        f"nodes: say --hardware NAME ({', '.join(device_names())}, or a YAML file as for `pretrain plan`), or {ways}"
    )
