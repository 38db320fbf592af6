"""The parameters of the convolution beside a first layer."""

from collections.abc import Iterator

from pretrain.config.model import Model
from pretrain.model_spec.linears import norm, replicated_linear, under
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.model_spec.slots import NetworkPart, Specs


class ConvolutionSpecs(NetworkPart):
    """Parameters of the convolution."""

    def beside_layer(self, model: Model, number: int) -> Specs:
        """See `NetworkPart`."""
        if model.convolution is None or number:
            return iter(())
        return under("convolution.", _convolution(model))


def _convolution(model: Model) -> Iterator[ParameterSpec]:
    """A convolution over three positions, as one matrix of their features, and the norm of its sum with the layer's
    output."""
    yield from under("kernel.", replicated_linear(model, 3 * model.hidden, model.hidden))
    yield from under("norm.", norm(model))
