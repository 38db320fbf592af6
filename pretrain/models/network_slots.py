"""The places of a part's modules around the layers of a model.

A part is a class with the slots that it fills, and a row of `network_modules.py`; one of `pretrain/classics` is also a
`PartModules`.
"""

from torch import nn

from pretrain.config.model import Model
from pretrain.models.embeddings import StackPart
from pretrain.models.layers import Final
from pretrain.models.megatron_config import MegatronConfig

Named = tuple[str, nn.Module]
"""a module, and its name in the chunk"""


class NetworkModules:
    """A part around layers that fills no slot. `chunk`: number of the chunk that a module is built in."""

    def front(
        self, model: Model, megatron: MegatronConfig, embedding: StackPart, final: Final, chunk: int | None
    ) -> Named | None:
        """On the first stage, called with the batch and the inputs of layers: what the encoder reads in place of
        embedded tokens."""
        return None

    def further(self, model: Model, megatron: MegatronConfig, final: Final, chunk: int | None) -> Named | None:
        """On the last stage, called with the last layer's output, the stream, the batch and the inputs of layers:
        states that the head reads besides, one for each further token."""
        return None
