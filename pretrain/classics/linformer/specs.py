"""The parameters of Linformer's attention along a shortened sequence. No torch."""

from collections.abc import Iterator
from dataclasses import replace

from pretrain.classics.linformer.key import Linformer
from pretrain.config.model import Model
from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.linears import matrix, under
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.model_spec.slots import PartSpecs, Specs

_IN_ATTENTION = "core_attention.projection."


class LinformerSpecs(PartSpecs):
    """Parameters of the projections along the sequence."""

    def attention(self, model: Model, query: Normal, key: Normal) -> Specs:
        """See `LayerPart`."""
        return under(_IN_ATTENTION, _projections(model))

    def shared(self, model: Model, name: str) -> bool:
        """See `LayerPart`."""
        return model.projection_shared_by is not None and name.startswith(f"self_attention.{_IN_ATTENTION}")


def _projections(model: Model) -> Iterator[ParameterSpec]:
    """Linformer's projections of keys and values along the sequence. The paper says nothing of their initial values:
    these leave keys and values as large as they are."""
    settings = model.attention.projection
    assert isinstance(settings, Linformer), "has the name of the parameters"
    init = Normal((model.sequence_length**-0.5,))
    for name in ("keys", *(() if settings.shares_values else ("values",))):
        shape = settings.projected_length, model.sequence_length
        yield replace(matrix(name, shape, (None, None), init), blocks=RowBlocks())


SPECS = LinformerSpecs()
