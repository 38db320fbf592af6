"""`generator`: a second, smaller model that is trained beside `model` and makes what it reads (ELECTRA, DeBERTa v3)."""

from typing import Literal

from pydantic import Field

from pretrain.config.model import Model
from pretrain.config.section import Section


class Generator(Section):
    """Sizes in which the generator differs from `model`, and how both use token, position and segment embeddings."""

    hidden: int = Field(gt=0, description="hidden size of the generator (ELECTRA: 1/4 to 1/3 of model.hidden)")
    heads: int = Field(gt=0, description="number of attention heads of the generator")
    ffn: int | None = Field(
        None, gt=0, description="size of the generator's feed-forward layer; default: 4 * generator.hidden"
    )
    embedding_sharing: Literal["shared", "gdes"] = Field(
        "shared",
        description="how both models use embeddings. shared: one table (ELECTRA); gdes: those of the model are the "
        "generator's, which its gradients do not reach, plus tables of its own that begin at zero (DeBERTa v3)",
    )
    layers: int | None = Field(None, gt=0, description="number of layers of the generator; default: model.layers")

    def of(self, model: Model) -> Model:
        """The generator beside `model`: a masked language model on its embeddings."""
        sizes = {
            "hidden": self.hidden,
            "heads": self.heads,
            "ffn": self.ffn,
            "layers": self.layers or model.layers,
            "head_dim": None,
            "kv_heads": None,
            "embedding_size": None if model.embedding_dim == self.hidden else model.embedding_dim,
            "binary_head": False,
            "task_head": None,
        }
        return Model.model_validate(model.model_dump(mode="json") | sizes)
