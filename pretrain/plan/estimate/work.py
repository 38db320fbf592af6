"""What one optimizer step is asked for, of any number of layouts at once: arrays [n], one entry for each layout; arrays
[n, s] over the kinds of pipeline stages. Estimates read nothing else, so that a config, a published measurement and a
search over thousands of layouts are all judged by the same arithmetic."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
KERNELS = ("unfused", "unfused-fusedsoftmax", "flash1", "flash2", "cudnn")
"""of attention: scores in memory, by plain or by fused operations; FlashAttention 1 and 2; NVIDIA's cuDNN"""
GENERATIONS = ("volta", "ampere", "ada", "hopper", "blackwell", "cpu")


@dataclass(frozen=True)
class Stack:
    """The layers that are alike: an encoder's, or a decoder's."""

    layers: Array
    """[n, s] on a stage of each kind"""
    length: Array
    """positions of a sequence"""
    keys: Array
    """that a query sees, on average over positions and layers"""
    memory_length: Array
    """positions of the encoder that a decoder's layers read; 0: none"""


@dataclass(frozen=True)
class Work:
    """Numbers are float64. What is not said to be [n, s] is [n]."""

    hidden: Array
    ffn: Array
    gated: Array
    heads: Array
    kv_heads: Array
    head_dim: Array
    embedding_dim: Array
    """of what is multiplied with the vocabulary"""
    vocabulary: Array
    """rows of the embedding, padded"""
    labels: Array
    """positions of a sequence with a label"""
    stacks: tuple[Stack, ...]
    stages: Array
    """[n, s] how many pipeline stages there are of each kind: first, middle, last"""
    parameters: Array
    """[n, s] that one tensor rank of such a stage holds"""
    embeds: Array
    """[n, s] 1 where the embedding is"""
    predicts: Array
    """[n, s] 1 where the head and the loss are"""
    in_flight: Array
    """[n, s] micro-batches, each of one chunk of the stage, whose activations a stage holds at most"""
    sequences: Array
    """of the global batch"""
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
    """0 nothing, 1 attention, 2 whole layers"""
    products_kept: Array
    """1 where 1 means instead that every second matrix product and attention's output are kept, and nothing else"""
    width: Array
    """bytes of an activation or weight that is computed with"""
    weight_bytes: Array
    """that a rank holds for each of its `parameters`; likewise gradients and optimizer states"""
    gradient_state_bytes: Array
    optimizer_bytes: Array
    inner_widths: Array
    """of the feed-forward layer, how many tensors of its width are kept for the backward pass"""
    logit_bytes: Array
    """at most, for each position and word"""
    logit_ranks: Array
    """tensor ranks that share the words of a position"""
    logit_positions: Array
    """of which a rank has logits at a time; the gradient of what makes them is summed up meanwhile, if not all"""
    rotary: Array
    angle_bytes: Array
    """of a cosine or sine that is kept"""
    windows: Array
    """copies of keys and values that attention keeps of them, on average over layers"""
    score_biases: Array
    """1 where biases by distance are kept for every score of a layer, 1 / micro where rows share them"""
    score_bytes: Array
    """of each score of a head, where scores are written out; 0: a kernel keeps none"""
    read_score_bytes: Array
    """likewise, of a decoder's attention to an encoder"""
    score_share: Array
    """of the keys, those whose scores are written out, on average over layers"""
    most_scores: Array
    """likewise, of the layer that has most"""
    pair_bytes: Array
    """of each query and key that have a score, for all heads and rows together"""
    shaw_rows: Array
    """of the tables of distances that queries and probabilities meet"""
    head_norms: Array
    """1 where queries and keys are normalized"""
    norms: Array
    """of a layer, but for a cross-attention's"""
    norm_bytes: Array
    """that a norm keeps of each element besides its input"""
    embedding_norms: Array
    """1 where embeddings are normalized"""
    final_norms: Array
    """1 where a norm ends each stack"""
    head_tensors: Array
    """of the width of hidden states, between the last layer and logits"""
    dropout: Array
    """bytes that say of each hidden state whether it drops"""
    ffn_dropout: Array
    """likewise of each feature between a feed-forward layer's matrices"""
    gradient_bytes: Array
    """of a gradient that is exchanged"""
    fp8: Array
    """1 where layers' products are of 8-bit numbers"""
    rounding_bytes: Array
    """read and written of each element to round it to 8 bits; 0 where other work does it in passing"""
    kernel: NDArray[np.int64]
    """index into KERNELS"""
    fused_norms: Array
    """1 where a norm is one kernel, 0 where it is written in several operations"""
    generation: NDArray[np.int64]
    """index into GENERATIONS"""
    peak_flops: Array
    memory_bytes_per_s: Array
    processors: Array
    """that work on tiles of a product at the same time"""
    link_bytes_per_s: Array
    """between the devices of a machine, one way, of one device"""
    network_bytes_per_s: Array
    """between machines, one way, of one device"""
    node: Array
    """devices of a machine"""

    @property
    def world(self) -> Array:
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def micro_batches(self) -> Array:
        """That each rank works on in a step."""
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
        """The layouts that an index or a mask chooses."""
        picked = {f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name != "stacks"}
        stacks = tuple(Stack(*(getattr(s, f.name)[chosen] for f in fields(Stack))) for s in self.stacks)
        return replace(self, **picked, stacks=stacks)
