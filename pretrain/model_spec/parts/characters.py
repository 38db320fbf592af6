"""The parameters around the layers of a model of characters."""

from pretrain.config.characters import CharacterShape
from pretrain.config.model import Model
from pretrain.model_spec.init_schemes import SCHEMES
from pretrain.model_spec.layer import layer
from pretrain.model_spec.linears import matrix, norm, replicated_linear, under
from pretrain.model_spec.parameter_spec import Normal
from pretrain.model_spec.slots import NetworkPart, Specs


class CharacterSpecs(NetworkPart):
    """Parameters of the layers that read characters."""

    def words(self, model: Model) -> Specs | None:
        """See `NetworkPart`."""
        return None if model.characters is None else _input(model, model.characters)

    def before_head(self, model: Model) -> Specs:
        """See `NetworkPart`."""
        if model.characters is None or not model.ends_in_characters:
            return iter(())
        return under("characters.", _output(model, model.characters))


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
    """What lies between the layers and the head of a model that predicts something of characters: a convolution with
    its norm, and a layer; and where each prediction reads those before it, a dense layer with its norm, and a layer."""
    inputs = shape.kernel * 2 * model.hidden
    yield from under("up.kernel.", replicated_linear(model, inputs, model.hidden))
    yield from under("up.norm.", norm(model))
    yield from under("layer.", layer(model, has_cross_attention=False, number=0))
    if model.predicts_in_order:
        yield from under("known.dense.", replicated_linear(model, 2 * model.hidden, model.hidden))
        yield from under("known.norm.", norm(model))
        yield from under("known.layer.", layer(model, has_cross_attention=False, number=0))
