"""The parameters of Transformer-XL's and XLNet's attention scores."""

from collections.abc import Iterator
from dataclasses import replace

from pretrain.config.model import Model
from pretrain.config.positions import TransformerXlPositions
from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.init_schemes import SCHEMES
from pretrain.model_spec.linears import matrix, under
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.model_spec.slots import LayerPart, Specs

QUERY_BIASES = ("key_bias", "distance_bias", "segment_bias")
"""in the modules of `distance_scores`"""


class TransformerXlSpecs(LayerPart):
    """Parameters of the terms of attention scores."""

    def attention(self, model: Model, query: Normal, key: Normal) -> Specs:
        """See `LayerPart`."""
        return under("core_attention.distance_scores.", _distance_scores(model))

    def shared(self, model: Model, name: str) -> bool:
        """See `LayerPart`."""
        return model.shares_biases and name.endswith(QUERY_BIASES)


def _distance_scores(model: Model) -> Iterator[ParameterSpec]:
    """Transformer-XL's terms of attention scores: the projection of distances, the biases of queries for keys and for
    distances, and XLNet's for segments, with the vectors of the query's segment and of others."""
    if not isinstance(model.positions, TransformerXlPositions):
        return
    scheme, heads, width = SCHEMES[model.init.name](model), model.heads, model.dim_per_head
    projection = Normal((scheme.projection(model.hidden, heads * width),))
    table = Normal((scheme.table(),))
    weight = matrix("projection", (heads, width, model.hidden), ("tensor", None, None), projection, "width")
    yield replace(weight, blocks=RowBlocks(rows=width, are_heads=True))
    for name in QUERY_BIASES[: None if model.compares_segments else -1]:
        yield replace(matrix(name, (heads, width), ("tensor", None), table), is_matrix=False)
    if model.compares_segments:
        yield matrix("segments", (heads, 2, width), ("tensor", None, None), table)
