"""The parameters of Shaw's relative positions."""

from collections.abc import Iterator

from pretrain.config.model import Model
from pretrain.config.positions import ShawPositions
from pretrain.model_spec.init_schemes import SCHEMES
from pretrain.model_spec.linears import matrix, under
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.model_spec.slots import LayerPart, Specs


class ShawSpecs(LayerPart):
    """Parameters of the tables that are added to keys and values."""

    def attention(self, model: Model, query: Normal, key: Normal) -> Specs:
        """See `LayerPart`."""
        return under("core_attention.shaw.", _tables(model))


def _tables(model: Model) -> Iterator[ParameterSpec]:
    """Shaw's tables of relative positions, which are added to keys and values: one per head, or one for all heads."""
    if isinstance(model.positions, ShawPositions):
        shape = (model.heads if model.positions.per_head else 1, model.distance_rows, model.dim_per_head)
        axes = ("tensor" if model.positions.per_head else None, None, None)
        init = Normal((SCHEMES[model.init.name](model).projection(model.distance_rows, model.dim_per_head),))
        yield from (matrix(name, shape, axes, init) for name in ("keys", "values"))
