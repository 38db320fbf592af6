"""Shapes of a model's parts and of the kernels that run them, for the workload of a step (`workload.py`)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrain.model_spec.gradients import PRODUCTS
from pretrain.plan.estimate.entries import Array, Entries

KERNELS = ("unfused", "unfused-fusedsoftmax", "flash1", "flash2", "cudnn")
"""Attention kernels: scores in memory, by plain or by fused operations; FlashAttention 1 and 2; NVIDIA's cuDNN."""


@dataclass(frozen=True, kw_only=True)
class ModelShapes(Entries):
    """Widths and parts of a model, [n]."""

    hidden: Array
    gated: Array
    """1 if the feed-forward layer multiplies two projections"""
    heads: Array
    kv_heads: Array
    head_dim: Array
    value_dim: Array
    """width of a head's value"""
    rotary_dim: Array
    """width of what rotary positions turn of a head"""
    embedding_dim: Array
    """width of what is multiplied with the embedding of the vocabulary"""
    vocabulary: Array
    """rows of the embedding, padded"""
    answers: Array
    """numbers that a task head makes for each position, on every tensor rank; 0: the head makes logits"""
    label_length: Array
    """positions of a sequence that have a label"""
    rotary: Array
    distance_rows: Array
    """rows of the distance tables that queries and probabilities, or queries and keys, are multiplied with"""
    kept_distance_rows: Array
    """rows of them whose products each query keeps"""
    distance_linears: Array
    """linear layers that each layer applies to the rows of a distance table; 0: none"""
    distance_features: Array
    """outputs of all of these for each row"""
    bias_copies: Array
    """width of what is copied of each position's queries, keys and values to add a bias"""
    last_layer_uses: Array
    """uses of the last layer before tokens are predicted, which each read the states of the layer before it, too; 0:
    the last layer is like others"""
    qk_norm: Array
    """1 if queries and keys are normalized, head by head"""
    all_heads_norm: Array
    """1 if queries and keys are normalized over all heads"""
    layer_norms: Array
    """norms of a layer, without the one of cross-attention"""
    adapter_dim: Array
    """width between the two matrices of each adapter; 0: none"""
    trains_output: Array
    """1 if the matrix that makes logits or answers is trained"""
    trains_transform: Array
    """1 if the matrix between the last layer and the logits is trained"""
    trains_embedding_projection: Array
    """1 if the matrix between the embedding and the first layer is trained"""
    embedding_norm: Array
    """1 if embeddings are normalized"""
    final_norm: Array
    """1 if each stack ends with a norm"""
    head_tensors: Array
    """number of tensors of the hidden width between the last layer and the logits"""
    head_transform: Array
    """1 if a matrix lies between the last layer and the logits"""
    embedding_projection: Array
    """1 if a matrix lies between the embedding and the first layer"""
    positions_beside_first: Array
    """positions that a linear layer beside the first layer reads for each; 0: there is none"""
    further: Array
    """further tokens that each position predicts: each with a projection of twice the hidden width, a layer of the last
    stack, and logits"""
    embedding_lookups: Array
    """tables of the vocabulary that a token is looked up in, and whose rows are added"""
    shared_layers: Array
    """1 if the layers of a stack share their weights"""
    ties_output: Array
    """1 if the embedding of the vocabulary makes the logits, too"""

    @property
    def query_dim(self) -> Array:
        """Width of all queries of a position."""
        return self.heads * self.head_dim

    @property
    def key_dim(self) -> Array:
        """Width of all keys of a position, and but for latent attention of all values."""
        return self.kv_heads * self.head_dim

    @property
    def grouped(self) -> NDArray[np.bool_]:
        """Whether several queries share a key."""
        return self.kv_heads < self.heads


def each_product(layers: Array) -> Array:
    """Gradients of products where all have one: `layers` [n, s] for each, [n, PRODUCTS, s]."""
    return np.repeat(layers[:, None], len(PRODUCTS), axis=1)


@dataclass(frozen=True, kw_only=True)
class ComparisonShapes(Entries):
    """Comparison of a model's layers with its teacher's by a loss, [n]; all 0: none."""

    layers: Array
    """layers of each that are compared; with them hidden states are kept of the embedding, too"""
    projects: Array
    """1 if hidden states are compared, through a projection to the teacher's width"""
    scores: Array
    """1 if attention scores are compared"""

    @property
    def states(self) -> Array:
        """Hidden states of each model: of the embedding, and of each layer."""
        return self.layers + (self.layers > 0)


@dataclass(frozen=True, kw_only=True)
class AttentionShapes(Entries):
    """Memory that attention keeps for its backward pass besides queries, keys, values and its output, [n]."""

    key_copies: Array
    """copies of keys and values, averaged over layers"""
    copies_grouped_keys: Array
    """share of layers whose kernel keeps grouped keys and values once for each query; others keep them as they are"""
    score_biases: Array
    """1 where scores have distance biases, and are not written out: the kernel keeps a bias for every score"""
    shared_score_masks: Array
    """masks with these biases, of all heads and one row, that the layers of a rank share; 0: each layer keeps its own,
    for every row"""
    masks_of_rows: Array
    """1 where each row of each micro-batch has shared masks of its own"""
    score_bytes: Array
    """bytes of each score of a head where scores are written out; 0: the kernel keeps none"""
    live_score_bytes: Array
    """bytes of each score of a head in the forward pass, where scores are written out; 0: the kernel has none"""
    cross_score_bytes: Array
    """bytes of each score of cross-attention, where scores are written out; 0: none"""
    score_share: Array
    """share of the keys whose scores are written out, averaged over layers"""
    max_score_share: Array
    """share of the keys whose scores are written out, in the layer with the most"""
    pair_bytes: Array
    """bytes of each pair of query and key that has a score, for all heads and rows together"""
    score_gradient_bytes: Array
    """bytes of each score that the backward pass of a softmax takes, in models of a vocabulary small enough that the
    loss takes less"""
    freed_score_bytes: Array
    """bytes of `score_bytes` that are free by then"""


@dataclass(frozen=True, kw_only=True)
class KernelShapes(Entries):
    """Memory that the kernels of a software stack keep, [n]."""

    attention: Array
    """index into KERNELS"""
    fused_norms: Array
    """1 if a norm is one kernel, 0 if it is written in several operations"""
    norm_bytes: Array
    """bytes that a norm keeps for each element besides its input"""
    grouped_products: Array
    """1 if the products of all experts are one kernel"""
    ffn_tensors: Array
    """number of tensors of the feed-forward width that are kept for the backward pass"""
    fc2_input_tensors: Array
    """number of them that are kept for the weight of the last product alone"""
    live_ffn_tensors: Array
    """number of tensors of that width that are there at once in the forward pass"""
    keeps_products: Array
    """1 where selective recomputation keeps only every second matrix product and attention's output"""
    logit_bytes: Array
    """peak bytes for each position and vocabulary entry, where all positions are one chunk"""
    saved_logit_bytes: Array
    """the part of them that is saved for the backward pass"""
    chunk_logit_bytes: Array
    """the same, for the positions of one chunk of several"""
    chunk_product_bytes: Array
    """bytes of each value of the gradient of the head's weight, which a chunk's product makes beside its logits"""
    sampled_share: Array
    """share of positions at which a token is sampled"""
    head_gradient_bytes: Array
    """bytes of each value of the gradient of the head's weight, beside the gradient of all logits; 0: not counted"""
    chunk_head_gradient_bytes: Array
    """the same, beside its sum over chunks of logits, when this is handed over"""
    logits_sharded: Array
    """1 if tensor ranks share the logits of a position"""
    logit_positions: Array
    """positions whose logits a rank holds at a time; if not all, it accumulates the gradient of the head in chunks"""
    angle_bytes: Array
    """bytes of a cosine or sine that is kept"""
    dropout_bytes: Array
    """bytes of the dropout mask for each element of the hidden states"""
    ffn_dropout_bytes: Array
    """bytes of the dropout mask for each feature between the matrices of a feed-forward layer"""
    lora_dropout_bytes: Array
    """bytes of the dropped inputs of low-rank updates and their masks, for each position: inputs that tensor ranks
    replicate, or split by position"""
    lora_split_dropout_bytes: Array
    """the same, of inputs whose features tensor ranks split"""
    lora_cross_dropout_bytes: Array
    """the same, of inputs of attention to an encoder"""
    rounding_bytes: Array
    """bytes read and written to round each element to 8 bits; 0 where other work does it in passing"""
