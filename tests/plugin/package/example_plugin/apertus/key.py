"""`model.xielu`: settings of the activation. No torch."""

from pydantic import Field

from pretrain.config.part_key import PartKey
from pretrain.config.section import Section


class XieluSettings(Section):
    alpha_p: float = Field(0.8, gt=0, description="initial factor of the square of positive inputs")
    alpha_n: float = Field(0.8, gt=0.5, description="initial factor of the exponential of negative inputs; above 0.5")


KEY = PartKey("xielu", XieluSettings, "activation with parameters of its own; default: none", follows="activation")
