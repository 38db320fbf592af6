"""The parameters of DeBERTa's disentangled attention, and of the convolution beside its first layer."""

from collections.abc import Iterator

from pretrain.config.model import Model
from pretrain.config.positions import DisentangledPositions
from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.init_schemes import SCHEMES
from pretrain.model_spec.linears import aliases, at, column, matrix, norm, replicated_linear, under, vector
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.model_spec.slots import LayerPart, NetworkPart, Specs


class DisentangledSpecs(LayerPart):
    """Parameters of the terms of attention scores."""

    def attention(self, model: Model, query: Normal, key: Normal) -> Specs:
        """See `LayerPart`."""
        return _disentangled(model, query, key)


class DistanceSpecs(NetworkPart):
    """Parameters of the vectors of distances that all layers read, and of the convolution."""

    def beside_words(self, model: Model) -> Specs:
        """See `NetworkPart`."""
        return under("distances.", _distances(model))

    def copies(self, model: Model) -> Specs:
        """See `NetworkPart`. Each stage has a copy, named after its first layer."""
        for number in range(1, model.layers):
            name = f"encoder.layers.{number}.distances."
            yield from at(number + 1, "", aliases(under(name, _distances(model)), name, "embedding.distances."))

    def beside_layer(self, model: Model, number: int) -> Specs:
        """See `NetworkPart`."""
        if model.convolution is None or number:
            return iter(())
        return under("convolution.", _convolution(model))


def _distances(model: Model) -> Iterator[ParameterSpec]:
    """The vectors of distances that all layers read, and their norm."""
    if not isinstance(model.positions, DisentangledPositions):
        return
    init = Normal((SCHEMES[model.init.name](model).table(),))
    yield matrix("weight", (model.distance_rows, model.hidden), (None, None), init)
    if model.positions.norm:
        yield from under("norm.", norm(model))


def _convolution(model: Model) -> Iterator[ParameterSpec]:
    """A convolution over three positions, as one matrix of their features, and the norm of its sum with the layer's
    output."""
    yield from under("kernel.", replicated_linear(model, 3 * model.hidden, model.hidden))
    yield from under("norm.", norm(model))


def _disentangled(model: Model, query: Normal, key: Normal) -> Iterator[ParameterSpec]:
    """Projections of the vectors of distances, and the biases of queries and values where keys have none."""
    if not isinstance(model.positions, DisentangledPositions):
        return
    width, key_bias = model.heads * model.dim_per_head, model.capabilities.key_bias
    if not model.positions.shared_projections:
        heads = RowBlocks(rows=model.dim_per_head, are_heads=True)
        yield from under("position_key.", column(model.hidden, width, key, key_bias, heads))
        yield from under("position_query.", column(model.hidden, width, query, True, heads))
    if not key_bias:
        yield from (vector(name, width, axis="tensor") for name in ("query_bias", "value_bias"))
