"""Names of activations."""

from pretrain.model_spec.hf_fits import ACTIVATIONS


def our_activation(hf_name: str) -> str:
    """Our name of an activation of transformers. Raises KeyError for an unknown one."""
    variants = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_python": "gelu"}  # other implementations
    return ({hf: name for name, hf in ACTIVATIONS.items()} | variants)[hf_name]
