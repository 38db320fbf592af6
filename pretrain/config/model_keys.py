"""`model`: its keys, and what each is without an entry."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field, PositiveInt

from pretrain.config.attention import Attention
from pretrain.config.families import Family
from pretrain.config.init import Init, NormalInit
from pretrain.config.part_key import with_keys
from pretrain.config.part_keys import KEYS, KEYS_OF_PACKAGES, PartKeys
from pretrain.config.positions import (
    LearnedPositions,
    Positions,
)
from pretrain.config.section import Section
from pretrain.config.task_head import TaskHeadShape


class OwnKeys(Section):
    """Every key of the section; `ModelValues` has what follows from them, and `Model` the constraints between them."""

    family: Family = Field("gpt", description="kind of model, which decides the parts it is made of (docs/families.md)")
    layers: int = Field(gt=0, description="number of decoder layers; of encoder layers in a model without a decoder")
    encoder_layers: int | None = Field(
        None,
        ge=0,
        description="number of encoder layers of an encoder-decoder; 0: decoder only (t5, rnn); default: layers",
    )
    hidden: int = Field(gt=0, description="hidden size, the width of the residual stream (d_model)")
    heads: int = Field(gt=0, description="number of attention heads in each layer")
    kv_heads: int | None = Field(
        None,
        gt=0,
        description="number of key and value heads, each shared by heads / kv_heads query heads; default: same as "
        "heads",
    )
    head_dim: int | None = Field(None, gt=0, description="size of one attention head; default: hidden / heads")
    ffn: int | None = Field(
        None, gt=0, description="size of the feed-forward layer (intermediate size); default: 4 * hidden"
    )
    sequence_length: int = Field(gt=0, description="tokens per sequence; of the input in an encoder-decoder")
    target_length: int | None = Field(
        None,
        gt=0,
        description="tokens that the decoder of an encoder-decoder predicts, or positions of a row at which a model of "
        "characters predicts something; default: as many as the objective makes",
    )
    vocabulary: int | None = Field(
        None, gt=0, description="number of token ids; default: those of the tokenizer and the objective"
    )
    vocabulary_multiple: int = Field(
        128, gt=0, description="embedding rows are padded up to a multiple of this, so that tensor ranks can share them"
    )
    norm: Literal["pre", "post", "sandwich"] = Field(
        "pre",
        description="placement of norms. pre: before each sublayer (GPT-2, 3, T5, Llama); post: after its "
        "residual (GPT); sandwich: before and after each sublayer, inside its residual (Gemma 3)",
    )
    norm_type: Literal["layer", "rms", "rms_zero_centered"] = Field(
        "layer",
        description="kind of norm. layer: LayerNorm; rms: without mean and bias (T5, Llama); rms_zero_centered: "
        "stored as weight - 1 (Gemma)",
    )
    norm_eps: float = Field(1e-5, gt=0, lt=1, description="epsilon added to the variance in norms")
    bias: bool = Field(True, description="whether linear layers have a bias")
    qkv_bias: bool | None = Field(
        None, description="whether the query, key and value projections have a bias (Qwen2); default: same as bias"
    )
    projection_bias: bool = Field(
        True, description="whether, with bias, the projection after attention has one, too (Transformer-XL: not)"
    )
    qk_norm: bool = Field(False, description="norm of each head's query and key (Qwen3, Gemma 3)")
    qk_norm_span: Literal["head", "all_heads"] = Field(
        "head",
        description="features that such a norm spans. head: those of one head, with the same weights for each; "
        "all_heads: those of all heads (OLMoE)",
    )
    activation: Literal["gelu_tanh", "gelu", "relu", "gated_gelu", "gated_silu", "gated_relu"] = Field(
        "gelu_tanh",
        description="activation of the feed-forward layer. gelu: exact (BERT); gelu_tanh: its tanh form; gated: "
        "multiplied by a second projection: GELU in its tanh form (T5 v1.1, Gemma), SiLU (Llama) or "
        "ReLU",
    )
    positions: Positions = LearnedPositions()
    segments: int = Field(0, ge=0, description="number of segment (token type) embeddings (BERT: 2); 0: none")
    binary_head: bool = Field(
        False,
        description="binary classification head on the first position, for next-sentence or sentence-order "
        "prediction (BERT, ALBERT)",
    )
    embedding_norm: bool = Field(False, description="norm after the sum of embeddings (BERT, BART)")
    embedding_scale: bool = Field(False, description="multiply token embeddings by sqrt(hidden) (Transformer, Gemma)")
    embedding_size: int | None = Field(
        None,
        gt=0,
        description="size of the embeddings where it differs from hidden (ALBERT: 128): a projection maps them to "
        "hidden, and the head's transform back; default: hidden",
    )
    shared_layers: bool = Field(False, description="share one set of weights between all layers of a stack (ALBERT)")
    tie_encoder_decoder: bool = Field(
        False,
        description="share one set of weights between layer i of the encoder and layer i of the decoder, whose "
        "cross-attention is its own (the shared encoder-decoder of T5's study)",
    )
    tie_word_embeddings: bool = Field(True, description="use the token embedding as output projection")
    task_head: TaskHeadShape | None = Field(
        None,
        description="head of a fine-tuned model in place of the vocabulary's logits; default: that of the objective",
    )
    teacher_hidden: int | None = Field(
        None,
        gt=0,
        description="hidden size of the teacher that a learned projection of hidden states leads to; default: that of "
        "distillation.teacher with distillation.hidden_weight, or none",
    )
    cutoffs: list[PositiveInt] = Field(
        [],
        description="first ids of clusters of rarer words in an adaptive softmax (Transformer-XL on WikiText-103: "
        "[20000, 40000, 200000]); default: one softmax over all words",
    )
    final_logit_softcap: float | None = Field(
        None, gt=0, description="cap of the logits: cap * tanh(logits / cap) (Gemma 2); default: none"
    )
    attention_logit_softcap: float | None = Field(
        None,
        gt=0,
        description="cap of attention scores before the softmax: cap * tanh(scores / cap) (Gemma 2); default: none",
    )
    query_pre_attn_scalar: int | None = Field(
        None,
        gt=0,
        description="attention scores are divided by its square root (Gemma 2 27B: 144; Gemma 3 27B: 168); default: by "
        "that of the size of a head's query",
    )
    memory_length: int = Field(
        0,
        ge=0,
        description="positions before a row that each layer attends to (mem_len of Transformer-XL); rows of "
        "training then continue each other, in as many lanes as a batch has sequences; 0: none",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout after the embedding and each sublayer")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout of attention probabilities")
    ffn_dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout between the two matrices of the feed-forward layer (T5)"
    )
    init: Init = NormalInit()
    attention: Attention = Attention()


if TYPE_CHECKING:

    class ModelKeys(OwnKeys, PartKeys):
        """With the keys of parts."""

else:
    ModelKeys = with_keys("ModelKeys", OwnKeys, KEYS.values(), KEYS_OF_PACKAGES.values())
