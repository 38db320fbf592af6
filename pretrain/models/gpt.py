"""GPT, GPT-2, GPT-3: decoder with learned positions; one pipeline chunk of it."""

from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from pretrain.config.schema import Model
from pretrain.models.blocks import decoder_spec


def build(model: Model, megatron: TransformerConfig, first: bool, last: bool, chunk: int | None) -> GPTModel:
    """megatron-core's GPTModel from our layer specs. `chunk` numbers the model chunks of one stage (interleaving)."""
    return GPTModel(
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
