"""The parts that models have modules of around their layers."""

from pretrain.models.multi_token_prediction import MtpModules
from pretrain.models.network_slots import NetworkModules
from pretrain.models.source_encoder import SourceEncoderModules

NETWORK_MODULES: tuple[NetworkModules, ...] = (SourceEncoderModules(), MtpModules())
