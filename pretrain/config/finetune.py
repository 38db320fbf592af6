"""`finetune`: which parameters a run trains, and what they start with; the others keep those values."""

from typing import Literal

from pydantic import Field

from pretrain.config.section import Section

LORA_TARGETS = {
    "qkv": ("self_attention.linear_qkv",),
    "projection": ("self_attention.linear_proj",),
    "cross_q": ("cross_attention.linear_q",),
    "cross_kv": ("cross_attention.linear_kv",),
    "cross_projection": ("cross_attention.linear_proj",),
    "fc1": ("mlp.linear_fc1", "mlp.experts.linear_fc1", "mlp.shared_experts.linear_fc1"),
    "fc2": ("mlp.linear_fc2", "mlp.experts.linear_fc2", "mlp.shared_experts.linear_fc2"),
}
"""`finetune.lora.targets`: names of linear layers, and where these lie in a transformer layer, as far as it has them"""


class Lora(Section):
    """Hu et al. 2021, arXiv 2106.09685: alpha / rank * B A beside a linear layer, whose own weight is frozen."""

    rank: int = Field(8, gt=0, description="rank of the update of each weight: rows of A, columns of B")
    alpha: float = Field(16.0, gt=0, description="the update is multiplied by alpha / rank")
    targets: list[str] = Field(
        ["qkv", "projection", "fc1", "fc2"],
        min_length=1,
        description=f"linear layers that are updated, by name: {', '.join(LORA_TARGETS)}",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the input of A, not of the frozen weight's")
    modules_to_save: list[Literal["embedding", "head"]] = Field(
        [],
        description="modules that are trained themselves beside the updates, by PEFT's name of such a list. embedding: "
        "the token embeddings, with the output layer where that is tied to them; head: the output layer, and what "
        "an encoder has between its layers and that",
    )
    embedding_rate: float = Field(
        1.0,
        gt=0,
        description="factor of the learning rate for the token embeddings of modules_to_save (Unsloth's "
        "embedding_learning_rate divided by the learning rate)",
    )
    head_rate: float = Field(
        1.0,
        gt=0,
        description="factor of the learning rate for the head of modules_to_save; tied to the token embeddings, the "
        "output layer has their rate",
    )

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class Adapters(Section):
    """Houlsby et al. 2019, arXiv 1902.00751: small layers after attention and after the feed-forward layer."""

    size: int = Field(64, gt=0, description="width between the two matrices of an adapter")


class Finetune(Section):
    """The trained parameters of a run."""

    weights: Literal["checkpoint", "random"] = Field(
        "checkpoint",
        description="initial weights. checkpoint: those of run.start_from; random: all are drawn from run.seed, and "
        "run.start_from gives the model and the tokenizer alone, to compare with",
    )
    train: Literal["all", "head", "top", "source_encoder"] = Field(
        "all",
        description="parameters that are trained. all: every one, or with finetune.lora or finetune.adapters what "
        "these add, and the task head; head: the task head; top: the last finetune.layers layers and what follows "
        "them; source_encoder: that of model.source_encoder, position embeddings, and the matrix of queries, keys and "
        "values of the first encoder layer (BART's first stage of translation)",
    )
    layers: int | None = Field(None, gt=0, description="number of layers that finetune.train=top trains")
    adapters: Adapters | None = Field(
        None,
        description="train bottleneck adapters in each layer, all norms and the task head, and freeze all other "
        "weights",
    )
    rate_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="factor of the learning rate from each layer to the one below, as in ELECTRA: the head has the "
        "learning rate itself, layer l of L that times rate_decay^(L + 2 - l), embeddings times rate_decay^(L + 2); 1: "
        "one learning rate",
    )
    unfreeze_steps: int = Field(
        0,
        ge=0,
        description="gradual unfreezing: the head is trained first, and after each number of steps the next layer from "
        "the top joins, embeddings last; 0: all are trained from the start",
    )
    lora: Lora | None = Field(
        None, description="train low-rank updates of linear layers, and the task head, and freeze all other weights"
    )
