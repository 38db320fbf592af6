"""The parameters of Linformer's attention along a shortened sequence."""

from collections.abc import Iterator
from dataclasses import replace

from pretrain.config.model import Model
from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.linears import matrix, under
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.model_spec.slots import LayerPart, Specs

_IN_ATTENTION = "core_attention.projection."
SEQUENCE_PROJECTION = f"self_attention.{_IN_ATTENTION}"
"""prefix, in a layer, of the projections of keys and values along the sequence"""


class LinformerSpecs(LayerPart):
    """Parameters of the projections along the sequence."""

    def attention(self, model: Model, query: Normal, key: Normal) -> Specs:
        """See `LayerPart`."""
        return under(_IN_ATTENTION, _projections(model))

    def shared(self, model: Model, name: str) -> bool:
        """See `LayerPart`."""
        return model.shares_projection and name.startswith(SEQUENCE_PROJECTION)


def _projections(model: Model) -> Iterator[ParameterSpec]:
    """Linformer's projections of keys and values along the sequence. The paper says nothing of their initial values:
    these leave keys and values as large as they are."""
    settings = model.attention.projection
    if settings is not None:
        init = Normal((model.sequence_length**-0.5,))
        for name in ("keys", *(() if settings.shares_values else ("values",))):
            shape = settings.projected_length, model.sequence_length
            yield replace(matrix(name, shape, (None, None), init), blocks=RowBlocks())
