"""GPT, GPT-2, GPT-3: decoder with learned positions; one pipeline chunk of it."""

from typing import Any

from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from pretrain.attention.patterns import within_documents
from pretrain.config.attention import Attention
from pretrain.config.model import Model
from pretrain.models.blocks import HiddenDropout, decoder_spec
from pretrain.models.inputs import MicroBatch


class GPT(GPTModel):
    """megatron-core's GPTModel, but in training it hands on the logits as they lie, [S, B, V]: the loss is the
    objective's. Called without labels, megatron-core transposes them, which costs three copies of all the logits."""

    encoder_layers = 0
    attention: Attention

    def forward(self, batch: MicroBatch, cache: Any = None) -> Tensor:
        """Hidden states for the next stage, or logits on the last one: [S, B, V / tensor ranks]; with a key-value
        `cache` [B, 1, V] for the last position, of all tensor ranks."""
        if cache is None:
            mask = None
            if batch.documents_BS is not None:  # one for all layers
                mask = within_documents(
                    batch.documents_BS, self.attention.kinds, self.attention.window, self.config.pipeline_dtype
                )
            return super().forward(batch.tokens_BS, batch.positions_BS, mask, labels=batch.labels_BL)
        whole = {"inference_context": cache, "runtime_gather_output": True}
        return super().forward(batch.tokens_BS, batch.positions_BS, None, **whole)

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
    gpt.attention = model.attention
    if first:
        gpt.embedding.embedding_dropout = HiddenDropout(megatron)
    return gpt
