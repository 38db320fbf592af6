"""The parameters of recurrent layers, and the multiply-adds of their matrices. `modules.py` builds modules of the same
names. No rank has a part of a matrix: tensor parallelism is refused. No torch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pretrain.classics.rnn.key import KEY, GeneralScore, cells_of
from pretrain.config.model import Model
from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.init_schemes import SCHEMES
from pretrain.model_spec.once import once_for_each
from pretrain.model_spec.parameter_spec import Constant, Normal, ParameterSpec
from pretrain.model_spec.slots import PartSpecs, Specs


def fed_width(model: Model) -> int:
    """Width of what attention hands to the first decoder layer's cell: a context, an attentional state, or nothing."""
    cells = cells_of(model)
    if cells.reads_context:
        return cells.annotation(model.hidden)
    return model.embedding_dim if cells.feeds else 0


def encoder_layer(model: Model, number: int) -> Iterator[ParameterSpec]:
    """Cells of one layer, one for each direction; both read what both of the layer below say."""
    cells = cells_of(model)
    inputs = cells.annotation(model.hidden) if number else model.embedding_dim
    for direction in cells.directions:
        yield from _under(f"{direction}_cell.", _cell(model, inputs, cells.encoder_units(model.hidden)))


def decoder_layer(model: Model, number: int) -> Iterator[ParameterSpec]:
    """The cell of one layer."""
    inputs = model.hidden if number else model.embedding_dim
    yield from _under("cell.", _cell(model, inputs, model.hidden, 0 if number else fed_width(model)))


def after_layers(model: Model) -> Iterator[ParameterSpec]:
    """Parameters of a decoder besides its layers: of its start, which reads the encoder before the first step; of
    attention; and of the map from attention's result and the state to the width of embeddings."""
    cells, hidden = cells_of(model), model.hidden
    width = cells.annotation(hidden)
    if cells.compares_by_vector:
        yield from _under("start.key.", _linear(model, width, cells.score_size(hidden)))
    if model.has_encoder and cells.starts_dense:
        for number in range(model.layers * cells.states):
            yield from _under(f"start.states.{number}.", _linear(model, width, hidden))
    if cells.score is not None:
        if cells.compares_by_vector:
            size = cells.score_size(hidden)
            yield from _under("attention.query.", _linear(model, hidden, size, bias=False))
            yield from _under("attention.vector.", _linear(model, size, 1, bias=False))
        elif isinstance(cells.score, GeneralScore):
            yield from _under("attention.query.", _linear(model, hidden, width, bias=False))
        yield from _under("readout.", _linear(model, hidden + width, model.embedding_dim))
    elif model.embedding_dim != hidden:
        yield from _under("readout.", _linear(model, hidden, model.embedding_dim))


class RecurrentSpecs(PartSpecs):
    """Parameters of recurrent layers."""

    def layer(self, model: Model, stack: int, number: int) -> Specs | None:
        """See `NetworkPart`."""
        if KEY.of(model) is None:
            return None
        return decoder_layer(model, number) if stack else encoder_layer(model, number)

    def after_layers(self, model: Model, stack: int) -> Specs | None:
        """See `NetworkPart`."""
        if KEY.of(model) is None:
            return None
        return after_layers(model) if stack else iter(())

    def multiply_adds(self, model: Model, passes: tuple[int, int], inputs: int, labels: int) -> float:
        """See `NetworkPart`: each matrix once per position, and attention the score and the weighted sum of each pair
        of a decoder's and an encoder's position. All products have both gradients."""
        if KEY.of(model) is None:
            return 0.0
        adds, (encoder_layers, layers) = multiply_adds(model), model.stacks
        found = adds.of_row + inputs * adds.of_key + inputs * labels * adds.of_pair
        found += inputs * adds.of_encoder_position if encoder_layers else 0
        found += labels * adds.of_decoder_position if layers else 0
        return 3.0 * found


@dataclass(frozen=True)
class MultiplyAdds:
    """Multiply-adds of recurrent layers in a forward pass."""

    of_encoder_position: int
    of_decoder_position: int
    of_key: int
    """multiply-adds of each encoder position for attention"""
    of_pair: int
    """multiply-adds of each pair of a decoder's and an encoder's position"""
    of_row: int
    """multiply-adds of each row's first state"""


@once_for_each
def multiply_adds(model: Model) -> MultiplyAdds:
    """Each matrix of `model` once for each of its positions."""
    encoder_layers, layers = model.stacks
    cells, width = cells_of(model), cells_of(model).annotation(model.hidden)
    after = list(after_layers(model))
    compared = cells.score_size(model.hidden) if cells.compares_by_vector else width
    return MultiplyAdds(
        of_encoder_position=_matrices(spec for n in range(encoder_layers) for spec in encoder_layer(model, n)),
        of_decoder_position=_matrices(spec for n in range(layers) for spec in decoder_layer(model, n))
        + _matrices(spec for spec in after if spec.name.startswith(("attention.query.", "readout."))),
        of_key=_matrices(spec for spec in after if spec.name.startswith("start.key.")),
        of_pair=0 if cells.score is None else compared + width,
        of_row=_matrices(spec for spec in after if spec.name.startswith("start.states.")),
    )


def _matrices(specs: Iterable[ParameterSpec]) -> int:
    return sum(spec.size for spec in specs if spec.is_matrix)


def _cell(model: Model, inputs: int, units: int, fed: int = 0) -> Iterator[ParameterSpec]:
    """The gates' matrices of the input, of the state, and of what attention feeds. A GRU has two biases, as its reset
    gate lies between them."""
    gates = cells_of(model).gates
    yield from _under("input.", _linear(model, inputs, units, blocks=gates))
    yield from _under("recurrent.", _linear(model, units, units, bias=cells_of(model).cell.name == "gru", blocks=gates))
    if fed:
        yield from _under("fed.", _linear(model, fed, units, bias=False, blocks=gates))


def _linear(model: Model, inputs: int, outputs: int, bias: bool = True, blocks: int = 1) -> Iterator[ParameterSpec]:
    """A linear layer of `blocks` matrices, one below the other."""
    init = Normal((SCHEMES[model.init.name](model).projection(inputs, outputs),))
    rows = blocks * outputs
    each = RowBlocks(tuple(f"gate{number}" for number in range(blocks)), outputs) if blocks > 1 else RowBlocks()
    yield ParameterSpec(
        name="weight",
        shape=(rows, inputs),
        axes=(None, None),
        init=init,
        is_matrix=True,
        blocks=each if outputs > 1 else None,
    )
    if bias:
        yield ParameterSpec(name="bias", shape=(rows,), axes=(None,), init=Constant(0.0), is_matrix=False)


def _under(prefix: str, specs: Iterator[ParameterSpec]) -> Iterator[ParameterSpec]:
    return (spec.at(prefix + spec.name) for spec in specs)


SPECS = RecurrentSpecs()
