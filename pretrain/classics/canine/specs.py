"""The parameters around the layers of a model of characters, and the work of its products. No torch."""

from pretrain.classics.canine.key import KEY, CharacterShape
from pretrain.config.model import Model
from pretrain.config.patterns.blocks import Blocks
from pretrain.model_spec.init_schemes import SCHEMES
from pretrain.model_spec.layer import layer
from pretrain.model_spec.linears import matrix, norm, replicated_linear, under
from pretrain.model_spec.parameter_spec import Normal
from pretrain.model_spec.slots import PartSpecs, Specs


class CharacterSpecs(PartSpecs):
    """Parameters of the layers that read characters."""

    def words(self, model: Model) -> Specs | None:
        """See `NetworkPart`."""
        shape = KEY.of(model)
        return None if shape is None else _input(model, shape)

    def before_head(self, model: Model) -> Specs:
        """See `NetworkPart`."""
        shape = KEY.of(model)
        return iter(()) if shape is None or not model.upsamples else under("characters.", _output(model, shape))

    def multiply_adds(self, model: Model, passes: tuple[int, int], inputs: int, labels: int) -> float:
        """See `NetworkPart`; with attention."""
        shape = KEY.of(model)
        if shape is None:
            return 0.0
        before, behind = passes
        of_layer = 4 * model.hidden**2 + (3 if model.gated else 2) * model.hidden * model.ffn_dim
        of_pair, square = 2 * model.hidden, model.hidden**2
        keys = Blocks(block=shape.block).mean_keys(inputs, False)
        found = before * inputs * (of_layer + square + keys * of_pair)
        if model.upsamples:
            found += behind * inputs * (2 * shape.kernel + 2) * square
            found += behind * labels * (of_layer - 2 * square + inputs * of_pair)
        if model.predicts_in_order:
            found += behind * labels * (2 * square + of_layer + (labels + 1) / 2 * of_pair)
        return found


def _input(model: Model, shape: CharacterShape) -> Specs:
    """The buckets of all hashes as one table, and what lies between it and the layers: a layer, and a convolution with
    its norm."""
    deviation = SCHEMES[model.init.name](model).word_embeddings()
    table = shape.hashes * shape.buckets, model.hidden // shape.hashes
    yield matrix("word_embeddings.weight", table, (None, None), Normal((deviation,)))
    yield from under("layer.", layer(model, has_cross_attention=False, number=0))
    yield from under("down.kernel.", replicated_linear(model, shape.rate * model.hidden, model.hidden))
    yield from under("down.norm.", norm(model))


def _output(model: Model, shape: CharacterShape) -> Specs:
    """Parameters between the layers and the head of a model that predicts something of characters: a convolution with
    its norm, and a layer; and where each prediction reads those before it, a dense layer with its norm, and a layer."""
    inputs = shape.kernel * 2 * model.hidden
    yield from under("up.kernel.", replicated_linear(model, inputs, model.hidden))
    yield from under("up.norm.", norm(model))
    yield from under("layer.", layer(model, has_cross_attention=False, number=0))
    if model.predicts_in_order:
        yield from under("known.dense.", replicated_linear(model, 2 * model.hidden, model.hidden))
        yield from under("known.norm.", norm(model))
        yield from under("known.layer.", layer(model, has_cross_attention=False, number=0))


SPECS = CharacterSpecs()
