"""The parameters of a feed-forward layer."""

from collections.abc import Iterator

from pretrain.config.model import Model
from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.init_schemes import SCHEMES
from pretrain.model_spec.linears import column, into_residual, under
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec


def feed_forward(model: Model, size: int) -> Iterator[ParameterSpec]:
    """A feed-forward layer of `size` features."""
    scheme, hidden, inner = SCHEMES[model.init.name](model), model.hidden, (2 if model.gated else 1) * size
    first = Normal((scheme.projection(hidden, inner),))
    # Rows of gate and value lie side by side.
    of_first = RowBlocks(("gate", "value") if model.gated else ("all",))
    yield from under("linear_fc1.", column(hidden, inner, first, model.bias, of_first, fan_out="ffn"))
    yield from under("linear_fc2.", into_residual(scheme, size, hidden, model.bias, "ffn"))
