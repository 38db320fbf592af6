"""GPT, GPT-2, GPT-3: parts under the names that their parameters and dropout have had since before other families came,
which initial weights, dropout and checkpoints depend on."""

from torch import nn

from pretrain.config.model import Model
from pretrain.models.embeddings import StackEmbedding
from pretrain.models.megatron_config import MegatronConfig


class GptEmbedding(StackEmbedding):
    """The embedding of the only stack."""

    global_name = "embedding"

    def __init__(self, model: Model, megatron: MegatronConfig, length: int) -> None:
        super().__init__(model, megatron, length)
        _name(self.dropout, "embedding.embedding_dropout")


def final_norm(megatron: MegatronConfig) -> nn.Module:
    """The final norm, without dropout behind it."""
    norm = megatron.make_norm()
    _name(norm, "decoder.final_layernorm")
    return norm


def _name(module: nn.Module, global_name: str) -> None:
    module.global_name = global_name  # type: ignore[assignment]
