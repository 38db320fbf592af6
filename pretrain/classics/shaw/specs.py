"""The parameters of Shaw's relative positions. No torch."""

from collections.abc import Iterator

from pretrain.classics.shaw.key import ShawPositions
from pretrain.config.model import Model
from pretrain.model_spec.init_schemes import SCHEMES
from pretrain.model_spec.linears import matrix, under
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.model_spec.slots import PartSpecs, Specs


class ShawSpecs(PartSpecs):
    """Parameters of the tables that are added to keys and values."""

    def attention(self, model: Model, query: Normal, key: Normal) -> Specs:
        """See `LayerPart`."""
        return under("core_attention.shaw.", _tables(model))


def _tables(model: Model) -> Iterator[ParameterSpec]:
    """Shaw's tables of relative positions, which are added to keys and values: one per head, or one for all heads."""
    settings, rows, width = model.positions, model.distance_rows, model.dim_per_head
    assert isinstance(settings, ShawPositions), "have the name of the parameters"
    shape, axes = (
        (model.heads if settings.per_head else 1, rows, width),
        ("tensor" if settings.per_head else None, None, None),
    )
    init = Normal((SCHEMES[model.init.name](model).projection(rows, width),))
    yield from (matrix(name, shape, axes, init) for name in ("keys", "values"))


SPECS = ShawSpecs()
