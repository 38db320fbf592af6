"""The seam of a part in a plan: which layers of a model have work of their own.

A part is a class of `parts/` and a row of `parts/registry.py`; what its layers compute, keep and send is a `LayerWork`.
"""

from collections.abc import Sequence

from pretrain.config.model import Model
from pretrain.plan.estimate.workload import LayerWork


class ModelWork:
    """A part without work: layers are as they are without it."""

    def first_layer(self, model: Model) -> int:
        """Number of the first layer that has it, in a decoder alone whose first layers are without; 0: all have it, or
        none."""
        return 0

    def layer(self, model: Model, number: int) -> LayerWork | None:
        """Work of the part in layer `number` of a stack; None: there is none."""
        return None

    def positions_beside_first(self, model: Model) -> int:
        """Positions that a linear layer beside the first layer reads for each, to make as many features as one has,
        with an activation and a norm of its sum with the layer's output; 0: there is no such layer."""
        return 0

    def front(self, model: Model) -> Model | None:
        """A model of one stack of encoder layers in front of the others, on the first stage and trained; None: there
        is none."""
        return None

    def behind(self, model: Model) -> Sequence[int]:
        """Numbers of layers behind the last one, like those of its stack, on the last stage and trained. They read the
        states and embeddings that stages send on."""
        return ()
