"""The parameters of Monarch Mixer's layers (`modules.py`), and the work of what they have in place of attention. No
torch."""

import math
from collections.abc import Iterator
from dataclasses import replace

from pretrain.classics.monarch_mixer.key import BLOCKS_KEY, blocks_of, mixer_of
from pretrain.config.model import Model
from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.gradients import model_gradients
from pretrain.model_spec.init_schemes import SCHEMES, NormalScheme
from pretrain.model_spec.linears import column, norm, row, under
from pretrain.model_spec.once import once_for_each
from pretrain.model_spec.parameter_spec import Constant, Normal, ParameterSpec
from pretrain.model_spec.slots import Matrices, PartSpecs, Specs

CHANNELS = RowBlocks(("gate_before", "gate_after", "value"))
"""rows of the first linear layer: those of one channel after the other"""


class MixerSpecs(PartSpecs):
    """Parameters of layers with long convolutions."""

    def layer(self, model: Model, stack: int, number: int) -> Specs | None:
        """See `NetworkPart`."""
        return None if BLOCKS_KEY.of(model) is None else _mixer_layer(model)

    def feed_forward_matrices(self, model: Model) -> Matrices | None:
        """See `LayerPart`: in each, an output reads one block."""
        if BLOCKS_KEY.of(model) is None:
            return None
        blocks = blocks_of(model)
        return (model.hidden // blocks, 2 * model.ffn_dim), (model.ffn_dim // blocks, model.hidden)

    def multiply_adds(self, model: Model, passes: tuple[int, int], inputs: int, labels: int) -> float:
        """See `NetworkPart`: the long convolutions. Filters are made once for a micro-batch, which is not counted."""
        if BLOCKS_KEY.of(model) is None or not inputs:
            return 0.0
        return inputs * _convolution_passes(model) * convolution_flops(model, inputs) / 2


@once_for_each
def _convolution_passes(model: Model) -> int:
    """Times that the long convolutions of a layer are computed in all passes of all layers."""
    return sum(1 + ("core" in layer.inputs) for layer in model_gradients(model).layers)


def convolution_flops(model: Model, length: int) -> float:
    """Operations, for each position, of the long convolutions of a layer in a row of `length` positions: for each
    channel two FFTs of twice the length, of real numbers (5 / 2 * n * log2 n operations for n numbers), and the product
    between them, of six operations for each complex number."""
    return (1 + mixer_of(model).residual) * model.hidden * (10 * math.log2(2 * length) + 6)


def mixer(model: Model) -> Iterator[ParameterSpec]:
    """Parameters that a layer has in the place of attention's heads, between its two linear layers. The short
    convolution starts with the variance of torch's own, the weight of a position itself with that of the authors'."""
    settings = mixer_of(model)
    width = 3 * model.hidden
    yield _matrix("short.weight", (width, 3), ("tensor", None), 1 / 3)
    yield _vector("short.bias", width, "tensor")
    for name in ("filter", "residual_filter")[: 1 + settings.residual]:
        yield _vector(f"{name}.frequency", settings.filter_order, start=Constant(settings.frequency))
        yield _vector(f"{name}.skip", model.hidden, "tensor", Normal((1.0,)))
        for direction in ("before", "after"):
            yield from (replace(spec, name=f"{name}.{direction}.{spec.name}") for spec in _network(model))


def _network(model: Model) -> Iterator[ParameterSpec]:
    settings, scheme = mixer_of(model), SCHEMES[model.init.name](model)
    order, inputs = settings.filter_order, settings.filter_features
    for name in ("first", "second", "third"):
        yield _matrix(name, (order, inputs), (None, None), scheme.projection(inputs, order))
        yield _vector(f"{name}_bias", order)
        inputs = order
    yield _matrix("last", (model.hidden, order), ("tensor", None), scheme.projection(order, model.hidden))


def feed_forward(model: Model) -> Iterator[ParameterSpec]:
    """Block-diagonal matrices. What is drawn is larger than in full ones, as each output is a sum of fewer inputs."""
    scheme, blocks = SCHEMES[model.init.name](model), blocks_of(model)
    larger = blocks**0.5
    gates = scheme.projection(model.hidden, 2 * model.ffn_dim) * larger
    of_group = 2 * model.ffn_dim // blocks
    names = tuple(f"{kind}.{feature // of_group}" for feature in range(model.ffn_dim) for kind in ("gate", "value"))
    first = _matrix("gates.weight", (model.ffn_dim, 2, model.hidden // blocks), ("tensor", None, None), gates)
    yield replace(first, fan_in="width", blocks=RowBlocks(names))
    out = scheme.into_residual(model.ffn_dim, model.hidden) * larger
    second = _matrix("out.weight", (model.hidden, model.ffn_dim // blocks), ("tensor", None), out)
    rows = RowBlocks(tuple(f"block.{number}" for number in range(blocks)), model.hidden // blocks)
    yield replace(second, fan_in="ffn", blocks=rows)
    yield _vector("out.bias", model.hidden)


def _matrix(name: str, shape: tuple[int, ...], axes: tuple[str | None, ...], deviation: float) -> ParameterSpec:
    return ParameterSpec(name=name, shape=shape, axes=axes, init=Normal((deviation,)), is_matrix=True)


def _vector(name: str, size: int, axis: str | None = None, start: Constant | Normal | None = None) -> ParameterSpec:
    start = Constant(0.0) if start is None else start
    return ParameterSpec(name=name, shape=(size,), axes=(axis,), init=start, is_matrix=False)


def _mixer_layer(model: Model) -> Iterator[ParameterSpec]:
    """A layer of Monarch Mixer, whose only norm follows its feed-forward layer."""
    scheme, hidden = SCHEMES[model.init.name](model), model.hidden
    yield from under(
        "self_attention.linear_qkv.",
        column(hidden, 3 * hidden, _projection(scheme, hidden), True, CHANNELS),
    )
    yield from under("self_attention.", mixer(model))
    yield from under("self_attention.linear_proj.", row(hidden, hidden, _projection(scheme, hidden), True, "width"))
    yield from under("mlp.", feed_forward(model))
    yield from under("mlp_bda.norm.", norm(model))


def _projection(scheme: NormalScheme, hidden: int) -> Normal:
    return Normal((scheme.projection(hidden, hidden),))


SPECS = MixerSpecs()
