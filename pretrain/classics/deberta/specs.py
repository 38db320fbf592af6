"""The parameters of DeBERTa's parts. No torch."""

from collections.abc import Iterator

from pretrain.classics.deberta.key import KERNEL, MASK_DECODER, disentangled
from pretrain.config.model import Model
from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.init_schemes import SCHEMES
from pretrain.model_spec.linears import aliases, at, column, matrix, norm, replicated_linear, under, vector
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec
from pretrain.model_spec.slots import PartSpecs, Specs


class DistanceSpecs(PartSpecs):
    """Parameters of the vectors of distances that all layers read, and of what each of them makes of these."""

    def attention(self, model: Model, query: Normal, key: Normal) -> Specs:
        """See `LayerPart`."""
        return _layer_specs(model, query, key)

    def beside_words(self, model: Model) -> Specs:
        """See `NetworkPart`."""
        return under("distances.", _distances(model))

    def copies(self, model: Model) -> Specs:
        """See `NetworkPart`. Each stage has a copy, named after its first layer."""
        for number in range(1, model.layers):
            name = f"encoder.layers.{number}.distances."
            yield from at(number + 1, "", aliases(under(name, _distances(model)), name, "embedding.distances."))


def _distances(model: Model) -> Iterator[ParameterSpec]:
    """The vectors of distances that all layers read, and their norm."""
    init = Normal((SCHEMES[model.init.name](model).table(),))
    yield matrix("weight", (model.distance_rows, model.hidden), (None, None), init)
    if disentangled(model.positions).norm:
        yield from under("norm.", norm(model))


def _layer_specs(model: Model, query: Normal, key: Normal) -> Iterator[ParameterSpec]:
    """Projections of the vectors of distances, and the biases of queries and values where keys have none."""
    width, key_bias = model.heads * model.dim_per_head, model.capabilities.key_bias
    if not disentangled(model.positions).shared_projections:
        heads = RowBlocks(rows=model.dim_per_head, are_heads=True)
        yield from under("position_key.", column(model.hidden, width, key, key_bias, heads))
        yield from under("position_query.", column(model.hidden, width, query, True, heads))
    if not key_bias:
        yield from (vector(name, width, axis="tensor") for name in ("query_bias", "value_bias"))


class MaskDecoderSpecs(PartSpecs):
    """Parameters of the mask decoder besides those of the last layer."""

    def further(self, model: Model) -> Specs:
        """See `NetworkPart`."""
        if model.last_layer_uses:
            init = Normal((SCHEMES[model.init.name](model).table(),))
            shape = model.sequence_length, model.hidden
            yield matrix(f"{MASK_DECODER.module}.positions.position_embeddings.weight", shape, (None, None), init)


class ConvolutionSpecs(PartSpecs):
    """Parameters of the convolution beside the first layer."""

    def beside_layer(self, model: Model, number: int) -> Specs:
        """See `NetworkPart`."""
        return iter(()) if number else under("convolution.", _convolution(model))

    def positions_beside_first(self, model: Model) -> int:
        """See `NetworkPart`."""
        return KERNEL


def _convolution(model: Model) -> Iterator[ParameterSpec]:
    """A convolution over three positions, as one matrix of their features, and the norm of its sum with the layer's
    output."""
    yield from under("kernel.", replicated_linear(model, KERNEL * model.hidden, model.hidden))
    yield from under("norm.", norm(model))


DISTANCES, MASK_DECODER_SPECS, CONVOLUTION = DistanceSpecs(), MaskDecoderSpecs(), ConvolutionSpecs()
