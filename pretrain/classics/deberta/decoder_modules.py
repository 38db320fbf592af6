"""The enhanced mask decoder (arXiv 2006.03654, section 3.2): the last layer several times. It reads the states of the
layer before it; queries are these with absolute positions, then its own output.

Shapes: S positions (this rank's), B rows, H width, R rows of the table of distances.
"""

from collections.abc import Sequence

from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region
from torch import Tensor, nn

from pretrain.classics.deberta.key import MASK_DECODER
from pretrain.config.model import Model
from pretrain.models.layers import Layer, LayerInputs
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.slots import PartModules


class AbsolutePositions(nn.Module):
    """Embeddings of absolute positions, which are added to the queries of the layer that predicts tokens."""

    def __init__(self, model: Model, megatron: MegatronConfig) -> None:
        super().__init__()
        self.position_embeddings = megatron.kernels.table(model.sequence_length, model.hidden)
        self.shares_sequence = megatron.sequence_parallel

    def forward(self, x_SBH: Tensor, positions_BS: Tensor) -> Tensor:
        """The states with their positions, of which `positions_BS` are those of all tensor ranks."""
        added = self.position_embeddings(positions_BS).transpose(0, 1)
        out: Tensor = x_SBH + (scatter_to_sequence_parallel_region(added) if self.shares_sequence else added)
        return out


class MaskDecoder(nn.Module):
    """The last layer, in place of its ordinary use, several times."""

    global_name = MASK_DECODER.module

    def __init__(self, model: Model, megatron: MegatronConfig, after: Sequence[nn.Module]) -> None:
        super().__init__()
        self.positions = AbsolutePositions(model, megatron)
        self.layers = nn.ModuleList(after)
        for name, layer in zip(model.last_layer_again, after, strict=True):
            layer.global_name = name  # type: ignore[assignment]  # of a layer

    def forward(self, first: Layer, content_SBH: Tensor, table_RH: Tensor, *, inputs: LayerInputs) -> Tensor:
        """The states that tokens are predicted from; `first` is the last layer."""
        query_SBH: Tensor = self.positions(content_SBH, inputs.own["encoder"].positions_BS)
        for layer in (first, *self.layers):
            query_SBH = layer(query_SBH, table_RH, content_SBH, inputs=inputs)
        return query_SBH


class DecoderModules(PartModules):
    """See `PartModules`."""

    def last_layer(self, model: Model, megatron: MegatronConfig, after: Sequence[nn.Module]) -> MaskDecoder:
        """See `PartModules`."""
        return MaskDecoder(model, megatron, after)


MODULES = DecoderModules()
