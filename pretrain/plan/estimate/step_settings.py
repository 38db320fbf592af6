"""Where and how a model trains, for the workload of a step (`workload.py`): pipeline stages, layout, batch, precision,
devices."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrain.plan.estimate.entries import Array, Entries

GENERATIONS = ("volta", "ampere", "ada", "hopper", "blackwell", "cpu")
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True)
class StageShapes(Entries):
    """Pipeline stages by kind (first, middle, last), [n, s]."""

    count: Array
    """number of stages of each kind"""
    sharded_parameters: Array
    """parameters of one such stage that tensor ranks split"""
    replicated_parameters: Array
    """parameters of one such stage that every tensor rank holds"""
    sharded_trained: Array
    """trained ones of `sharded_parameters`"""
    replicated_trained: Array
    """trained ones of `replicated_parameters`"""
    expert_parameters: Array
    """parameters of experts, which expert ranks split, too, [n, 2, s]: among the sharded and the replicated ones"""
    expert_trained: Array
    """trained ones of `expert_parameters`"""
    expert_moments: Array
    """values that the optimizer keeps of `expert_parameters`"""
    sharded_moments: Array
    """values that the optimizer keeps of `sharded_parameters`"""
    replicated_moments: Array
    """values that the optimizer keeps of `replicated_parameters`"""
    sharded_blocks: Array
    """parameters that tensor ranks split and whose updates Muon orthogonalizes; 0 with other optimizers"""
    expert_blocks: Array
    """parameters among `sharded_blocks` that are of `expert_parameters`"""
    replicated_blocks: Array
    """parameters that every tensor rank holds and whose updates Muon orthogonalizes; 0 with other optimizers"""
    block_flops: Array
    """operations of Muon's Newton-Schulz steps on one such stage, which its ranks share"""
    embeds: Array
    """1 on stages with the embedding"""
    trains_embedding: Array
    """1 on stages with the embedding, or a norm of it, if it is trained"""
    predicts: Array
    """1 on stages with the head and the loss"""
    head_input: Array
    """1 on stages with the head, if its input has a gradient"""
    position: Array
    """index of the stage, from 0"""
    in_flight_share: Array
    """most layers of the chunks in flight, as a multiple of as many of the stage's mean length"""
    summed_parameters: Array
    """trained parameters that tensor ranks split and other stages hold too, such as a tied embedding; each counts
    2 (m - 1) / m times where m stages hold it, as in an all-reduce"""


@dataclass(frozen=True, kw_only=True)
class LayoutSizes(Entries):
    """Numbers of ranks along each axis of a layout, and how they share a training state, [n]."""

    tensor: Array
    sequence: Array
    """1 under sequence parallelism"""
    context: Array
    pipeline: Array
    virtual: Array
    data: Array
    expert: Array
    """ranks that share the experts of a layer"""
    expert_tensor: Array
    """tensor ranks that share the features of each expert: all of them, or 1"""
    zero: Array
    """ZeRO stage"""
    deepspeed: Array
    """1 if DeepSpeed shares the training state"""

    @property
    def world(self) -> Array:
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def stage_ranks(self) -> Array:
        """Ranks of a pipeline stage."""
        return self.tensor * self.context * self.data

    @property
    def replicas(self) -> Array:
        """Ranks that hold the same weights, but for those of experts."""
        return self.context * self.data

    @property
    def expert_replicas(self) -> Array:
        """Ranks that hold the same experts, or parts of them."""
        return self.tensor * self.replicas / (self.expert_tensor * self.expert)

    @property
    def expert_slices(self) -> Array:
        """Slices of a context rank's positions, of which each tensor rank has one computed by experts."""
        return self.tensor / self.expert_tensor

    @property
    def regroups_experts(self) -> NDArray[np.bool_]:
        """Whether experts are shared by other ranks than the rest of the model."""
        return (self.expert > 1) | (self.expert_slices > 1)

    @property
    def sequence_slices(self) -> Array:
        """Slices of a sequence's hidden states outside of matrix products: sequence parallelism."""
        return np.where(self.sequence > 0, self.tensor, 1.0)


@dataclass(frozen=True, kw_only=True)
class StepSettings(Entries):
    """Batch, recomputation and precision of a step, [n]."""

    sequences: Array
    """sequences of the global batch"""
    micro_sequences: Array
    """sequences of a micro-batch"""
    recompute: Array
    """index into RECOMPUTE"""
    trains: Array
    """1 if the model has a backward pass, 0 if it is a frozen teacher"""
    activation_bytes: Array
    """bytes of each activation and weight that the model computes with"""
    weight_bytes: Array
    """bytes of weights that a rank holds for each parameter of its stage"""
    gradient_bytes: Array
    """bytes of gradients that a rank holds for each parameter of its stage"""
    main_bytes: Array
    """bytes of fp32 weights that a rank holds for each parameter of its stage, beside those that the model computes
    with"""
    moment_bytes: Array
    """bytes that a rank holds for each value that the optimizer keeps of its stage"""
    keeps_scores: Array
    """1 if layers compute attention scores once more, to find the largest"""
    fp8: Array
    """1 if the matrix products of layers are in fp8"""
    exchanged_gradient_bytes: Array
    """bytes of each gradient element that ranks with the same weights exchange"""
    sums_everywhere: Array
    """1 if ZeRO 1 or 2 sums gradients on all ranks (all-reduce), 0 if on the rank that owns each (reduce-scatter)"""
    weight_gathers: Array
    """times that ZeRO 3 gathers the weights of a layer for a micro-batch, and a tied embedding once more for logits"""
    bucket_bytes: Array
    """bytes of buckets of gradients that are always there"""
    bucket_copy_bytes: Array
    """bytes of other buckets, and of copies of one that is exchanged, in the backward pass of layers"""
    table_copies: Array
    """bytes, for each value of the embedding of the vocabulary, of what is held at the end of its backward pass; 0: not
    counted"""
    build_bytes: Array
    """bytes that a rank holds for each parameter of its stage while the model is built; 0: no more than later"""


@dataclass(frozen=True, kw_only=True)
class DeviceSpeeds(Entries):
    """Speeds of one device and of its links, [n]."""

    generation: Array
    """index into GENERATIONS"""
    peak_flops: Array
    """peak of matrix products in 16 bits, or in fp32 if the model computes in fp32"""
    fp32_flops: Array
    """peak of products in fp32"""
    block_peak_flops: Array
    """peak of the matrix products of Muon's Newton-Schulz steps"""
    memory_bytes_per_s: Array
    processors: Array
    """processors that work on tiles of a matrix product at the same time"""
    link_bytes_per_s: Array
    """speed of one device to others of its node, one way"""
    network_bytes_per_s: Array
    """speed of one device to other nodes, one way"""
    per_node: Array
    """devices of a node"""
