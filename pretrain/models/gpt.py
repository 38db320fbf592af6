"""GPT, GPT-2, GPT-3: decoder with learned positions; one pipeline chunk of it."""

from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from pretrain.config.schema import Model
from pretrain.models.blocks import HiddenDropout, decoder_spec


class GPT(GPTModel):
    """megatron-core's GPTModel, but called with labels it hands on the logits as they lie, [S, B, V]: the loss is the
    objective's. Called without, it transposes them, which costs three copies of all the logits in a training step."""

    def compute_language_model_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        return logits


def build(model: Model, megatron: TransformerConfig, first: bool, last: bool, chunk: int | None) -> GPT:
    """The model from our layer specs. `chunk` numbers the model chunks of one stage (interleaving)."""
    gpt = GPT(
        config=megatron,
        transformer_layer_spec=decoder_spec(model, megatron, chunk),
        vocab_size=model.padded_vocabulary,
        max_sequence_length=model.sequence_length,
        pre_process=first,
        post_process=last,
        share_embeddings_and_output_weights=model.tied_head,
        position_embedding_type="learned_absolute",
        vp_stage=chunk,
    )
    if first:
        gpt.embedding.embedding_dropout = HiddenDropout(megatron)
    return gpt
