"""Workload of one optimizer step, for any number of layouts at once: arrays [n] have an entry for each layout, arrays
[n, s] one for each kind of pipeline stage as well. Estimates read nothing else, so that a config, a published
measurement and a search over thousands of layouts all go through the same arithmetic."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
KERNELS = ("unfused", "unfused-fusedsoftmax", "flash1", "flash2", "cudnn")
"""Attention kernels: scores in memory, by plain or by fused operations; FlashAttention 1 and 2; NVIDIA's cuDNN."""
GENERATIONS = ("volta", "ampere", "ada", "hopper", "blackwell", "cpu")


@dataclass(frozen=True)
class Stack:
    """Identical layers: those of an encoder, or of a decoder."""

    layers: Array
    """layers on a stage of each kind, [n, s]"""
    length: Array
    """positions of a sequence"""
    keys: Array
    """keys that a query sees, averaged over positions and layers"""
    memory_length: Array
    """positions of the encoder that a decoder's layers attend to; 0: none"""


@dataclass(frozen=True)
class Work:
    """Workload of a step. Numbers are float64, and [n] unless marked [n, s]."""

    hidden: Array
    ffn: Array
    gated: Array
    heads: Array
    kv_heads: Array
    head_dim: Array
    embedding_dim: Array
    """width of what is multiplied with the embedding of the vocabulary"""
    vocabulary: Array
    """rows of the embedding, padded"""
    labels: Array
    """positions of a sequence that have a label"""
    stacks: tuple[Stack, ...]
    stages: Array
    """number of pipeline stages of each kind (first, middle, last), [n, s]"""
    parameters: Array
    """parameters that one tensor rank of such a stage holds, [n, s]"""
    embeds: Array
    """1 on stages with the embedding, [n, s]"""
    predicts: Array
    """1 on stages with the head and the loss, [n, s]"""
    in_flight: Array
    """most micro-batches, each of one chunk of the stage, whose activations a stage holds at once, [n, s]"""
    sequences: Array
    """sequences of the global batch"""
    micro: Array
    tensor: Array
    sequence: Array
    pipeline: Array
    virtual: Array
    context: Array
    data: Array
    zero: Array
    deepspeed: Array
    recompute: Array
    """what is recomputed: 0 nothing, 1 attention, 2 full layers"""
    products_kept: Array
    """1 where `recompute` = 1 means that only every second matrix product and attention's output are kept"""
    width: Array
    """bytes of each activation and weight that the model computes with"""
    weight_bytes: Array
    """bytes of weights that a rank holds for each of its `parameters`; gradients and optimizer states follow"""
    gradient_state_bytes: Array
    optimizer_bytes: Array
    inner_widths: Array
    """number of tensors of the feed-forward width that are kept for the backward pass"""
    logit_bytes: Array
    """peak bytes for each position and vocabulary entry"""
    logit_ranks: Array
    """tensor ranks that share the logits of a position"""
    logit_positions: Array
    """positions whose logits a rank holds at a time; if not all, it accumulates the gradient of the head as it goes"""
    rotary: Array
    angle_bytes: Array
    """bytes of a cosine or sine that is kept"""
    windows: Array
    """copies of keys and values that attention keeps, averaged over layers"""
    score_biases: Array
    """1 where distance biases are kept for every score of a layer, 1 / micro where rows share them"""
    score_bytes: Array
    """bytes of each score of a head where scores are written out; 0: the kernel keeps none"""
    read_score_bytes: Array
    """bytes of each score of a decoder's attention to an encoder, where scores are written out; 0: none"""
    score_share: Array
    """share of the keys whose scores are written out, averaged over layers"""
    most_scores: Array
    """share of the keys whose scores are written out, in the layer with the most"""
    pair_bytes: Array
    """bytes of each pair of query and key that has a score, for all heads and rows together"""
    shaw_rows: Array
    """rows of the distance tables that queries and probabilities are multiplied with"""
    head_norms: Array
    """1 if queries and keys are normalized"""
    norms: Array
    """norms of a layer, without the one of cross-attention"""
    norm_bytes: Array
    """bytes that a norm keeps for each element besides its input"""
    embedding_norms: Array
    """1 if embeddings are normalized"""
    final_norms: Array
    """1 if each stack ends with a norm"""
    head_tensors: Array
    """number of tensors of the hidden width between the last layer and the logits"""
    dropout: Array
    """bytes of the dropout mask for each element of the hidden states"""
    ffn_dropout: Array
    """bytes of the dropout mask for each feature between the matrices of a feed-forward layer"""
    gradient_bytes: Array
    """bytes of each gradient element that is exchanged"""
    fp8: Array
    """1 if the matrix products of layers are in fp8"""
    rounding_bytes: Array
    """bytes read and written to round each element to 8 bits; 0 where other work does it in passing"""
    kernel: NDArray[np.int64]
    """index into KERNELS"""
    fused_norms: Array
    """1 if a norm is one kernel, 0 if it is written in several operations"""
    generation: NDArray[np.int64]
    """index into GENERATIONS"""
    peak_flops: Array
    memory_bytes_per_s: Array
    processors: Array
    """processors that work on tiles of a matrix product at the same time"""
    link_bytes_per_s: Array
    """speed of one device to others of its node, one way"""
    network_bytes_per_s: Array
    """speed of one device to other nodes, one way"""
    node: Array
    """devices of a node"""

    @property
    def world(self) -> Array:
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def micro_batches(self) -> Array:
        """Micro-batches that each rank processes in a step."""
        return self.sequences / (self.data * self.micro)

    @property
    def length(self) -> Array:
        """Positions of a sequence, of both stacks together: what travels between stages."""
        return sum((stack.length for stack in self.stacks), np.zeros_like(self.hidden))

    @property
    def slices(self) -> Array:
        """Parts of a sequence's hidden states outside of matrix products: sequence parallelism."""
        return np.where(self.sequence > 0, self.tensor, 1.0)

    def take(self, chosen: Any) -> "Work":
        """Workload of the layouts that an index or a mask chooses."""
        picked = {f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name != "stacks"}
        stacks = tuple(Stack(*(getattr(s, f.name)[chosen] for f in fields(Stack))) for s in self.stacks)
        return replace(self, **picked, stacks=stacks)
