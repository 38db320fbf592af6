"""The parts around or in place of layers that a model may have."""

from pretrain.model_spec.parts.mtp import MtpSpecs
from pretrain.model_spec.slots import NetworkPart

NETWORK_PARTS: tuple[NetworkPart, ...] = (MtpSpecs(),)
