"""The modules that predict further tokens in training, as parts of a model: which layers they are, and how what they
have is called."""

from collections.abc import Iterator

from pretrain.config.model import Model

PREFIX = "mtp."
"""prefix of the names of all that they have"""


def mtp_depths(model: Model) -> range:
    """Depths of further predictions, from 0."""
    return range(0 if model.mtp is None else model.mtp.num_layers)


def mtp_layer_name(depth: int) -> str:
    """The name of the transformer layer of a depth."""
    return f"{PREFIX}layers.{depth}.transformer_layer"


def expert_layer_names(model: Model) -> Iterator[str]:
    """Names of all layers that have experts, in their order."""
    numbers = (number for number in range(model.layers) if model.has_experts(number))
    yield from (f"decoder.layers.{number}" for number in numbers)
    if model.experts is not None:
        yield from map(mtp_layer_name, mtp_depths(model))
