"""The places of a part in a model, for its parameters: the slots of a model, and those of a Transformer layer.

A part is a class with the slots that it fills, in a file of `parts/`, and a row of `parts/of_layers.py` or
`parts/of_models.py`. Of those that take the place of something, a model has at most one.
"""

from collections.abc import Iterable, Iterator

from data_pipeline.common.plugins import Registry
from pretrain.config.classics import declared
from pretrain.config.model import Model
from pretrain.model_spec.parameter_spec import Normal, ParameterSpec

Specs = Iterator[ParameterSpec]
Matrices = tuple[tuple[int, int], tuple[int, int]]
"""(inputs that an output reads, outputs) of the two matrices of a feed-forward layer"""


class LayerPart:
    """A part of Transformer layers that fills no slot. Names are those in the module of the slot."""

    def mix(self, model: Model) -> Specs | None:
        """In `self_attention`, in place of the matrix that makes queries, keys and values."""
        return None

    def attention(self, model: Model, query: Normal, key: Normal) -> Specs:
        """In `self_attention`, behind what makes queries, keys and values, whose matrices begin as `query` and `key`
        say."""
        return iter(())

    def shared(self, model: Model, name: str) -> bool:
        """Whether all layers of a stack have what it names so in a layer in common."""
        return False

    def feed_forward(self, model: Model, number: int) -> Specs | None:
        """In `mlp` of layer `number` of the decoder, in place of a feed-forward layer."""
        return None

    def feed_forward_matrices(self, model: Model) -> Matrices | None:
        """Sizes of products of each feed-forward layer, where outputs do not read all inputs."""
        return None


class NetworkPart:
    """A part around or in place of layers that fills no slot. Names are those in the model, or in what the slot
    names."""

    def front(self, model: Model) -> Specs:
        """In front of the embeddings."""
        return iter(())

    def trained_first(self, name: str) -> bool:
        """Whether the stage of training that is for what is in front trains the parameter of that name."""
        return False

    def words(self, model: Model) -> Specs | None:
        """In `embedding`, in place of token embeddings."""
        return None

    def beside_words(self, model: Model) -> Specs:
        """In `embedding`, behind what it has otherwise."""
        return iter(())

    def layer(self, model: Model, stack: int, number: int) -> Specs | None:
        """In place of Transformer layer `number` of a stack, which is 0 for the encoder and 1 for the decoder."""
        return None

    def beside_layer(self, model: Model, number: int) -> Specs:
        """In layer `number` of all, encoder layers first, behind what it has otherwise."""
        return iter(())

    def positions_beside_first(self, model: Model) -> int:
        """Positions that a linear layer beside the first layer reads for each, to make as many features as one has; 0:
        there is no such layer."""
        return 0

    def copies(self, model: Model) -> Specs:
        """Aliases of parameters for stages that read them too, at the depths of the layers that do."""
        return iter(())

    def after_layers(self, model: Model, stack: int) -> Specs | None:
        """In `encoder` or `decoder`, in place of the norm behind the layers of the stack."""
        return None

    def before_head(self, model: Model) -> Specs:
        """Between the layers and the head: trained and frozen with the last layer."""
        return iter(())

    def further(self, model: Model) -> Specs:
        """Beside the head."""
        return iter(())

    def multiply_adds(self, model: Model, passes: tuple[int, int], inputs: int, labels: int) -> float:
        """Multiply-adds of a row in front of the layers and behind them, each computed in so many `passes`, and in
        layers that are in place of Transformer layers; without the embeddings and the head. `inputs`: positions of the
        row; `labels`: those with a label."""
        return 0.0


class PartSpecs(LayerPart, NetworkPart):
    """A part of `pretrain/classics` or of an installed package, which fills no slot (`pretrain.part_specs`). That of a
    package has modules for those of a feed-forward layer and beside a layer (`pretrain/models/slots.py`), or is of a
    pattern that projects keys or of positions with vectors of distances."""


_GROUP = "pretrain.part_specs"
PART_SPECS: Registry[PartSpecs] = Registry(_GROUP, {}, PartSpecs, declared(_GROUP))


def specs_apart(model: Model) -> tuple[PartSpecs, ...]:
    """The parts of a model that are found by their names, and that have parameters."""
    return tuple(PART_SPECS[name] for name in model.named_parts if name in PART_SPECS)


def feed_forward_matrices(model: Model, number: int) -> Matrices:
    """Sizes of the products of the feed-forward layer of a stack's layer `number`; of experts, those that a token
    passes through."""
    features = model.active_ffn_dim(number)
    full = (model.hidden, (2 if model.gated else 1) * features), (features, model.hidden)
    return next(filter(None, (part.feed_forward_matrices(model) for part in specs_apart(model))), full)


def filled(found: Iterable[Specs | None], otherwise: Specs) -> Specs:
    """The first specs that are found for a slot, or `otherwise` if there are none."""
    return next((specs for specs in found if specs is not None), otherwise)
