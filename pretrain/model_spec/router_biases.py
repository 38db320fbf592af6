"""Biases by which routers choose experts (`model.experts.selection_bias`): state of a model that is no parameter, as it
has neither gradient nor decay. Checkpoints hold it as `model/...`, as weights."""

from pretrain.config.model import Model
from pretrain.model_spec.mtp import expert_layer_names


def router_bias_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Shapes of the biases of all routers, by their names in the model."""
    if model.experts is None or not model.experts.selection_bias:
        return {}
    return {router_bias_name(layer): (model.experts.count,) for layer in expert_layer_names(model)}


def router_bias_name(layer: str) -> str:
    """The name of the bias of the router in `layer`, by its name in the model."""
    return f"{layer}.mlp.router.bias"
