"""The parts that models have modules of around their layers: ours, and those of `pretrain/classics`."""

from pretrain.config.model import Model
from pretrain.models.multi_token_prediction import MtpModules
from pretrain.models.network_slots import NetworkModules
from pretrain.models.part_modules import modules_of

_ROWS: tuple[NetworkModules, ...] = (MtpModules(),)


def around_layers(model: Model) -> list[NetworkModules]:
    """The parts that a model may have."""
    return [*_ROWS, *(part for part in modules_of(model) if isinstance(part, NetworkModules))]
