"""Workload of one optimizer step, for any number of layouts at once: arrays [n] have an entry for each layout, arrays
[n, s] one for each kind of pipeline stage as well. Estimates read nothing else, so that a config (`builder.py`), a
published measurement and a search over thousands of layouts all go through the same arithmetic."""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
KERNELS = ("unfused", "unfused-fusedsoftmax", "flash1", "flash2", "cudnn")
"""Attention kernels: scores in memory, by plain or by fused operations; FlashAttention 1 and 2; NVIDIA's cuDNN."""
GENERATIONS = ("volta", "ampere", "ada", "hopper", "blackwell", "cpu")
RECOMPUTE = ("none", "selective", "full")


class Entries:
    """Base of dataclasses whose fields are float64 arrays, or dataclasses of this kind, with one entry per layout."""

    @classmethod
    def repeat(cls, count: int, **values: Any) -> Self:
        """`count` entries. Each value is a number, which all entries share, or has one for each of them."""
        return cls(**{name: np.full(count, value, np.float64) for name, value in values.items()})

    def take(self, chosen: Any) -> Self:
        """Entries that an index or a mask chooses."""
        return type(self)(**{f.name: _take(getattr(self, f.name), chosen) for f in fields(self)})  # type: ignore[arg-type]


def _take(value: Any, chosen: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_take(one, chosen) for one in value)
    return value.take(chosen) if isinstance(value, Entries) else value[chosen]


@dataclass(frozen=True, kw_only=True)
class ModelShapes(Entries):
    """Widths and parts of a model, [n]."""

    hidden: Array
    ffn: Array
    gated: Array
    """1 if the feed-forward layer multiplies two projections"""
    heads: Array
    kv_heads: Array
    head_dim: Array
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
    decoder_uses: Array
    """uses of the last layer before tokens are predicted, which each read the states of the layer before it, too; 0:
    the last layer is like others"""
    biased_queries: Array
    """sums of queries and a bias, in place of queries: for keys, for distances, for segments; 0: queries are as they
    are"""
    qk_norm: Array
    """1 if queries and keys are normalized"""
    layer_norms: Array
    """norms of a layer, without the one of cross-attention"""
    adapter_dim: Array
    """width between the two matrices of each adapter; 0: none"""
    keeps_qkv_input: Array
    """1 if the input of queries, keys and values is kept for the gradient of their weight"""
    keeps_projection_input: Array
    """1 if the input of attention's output projection is kept alike"""
    keeps_cross_input: Array
    """1 if the input of a decoder's queries to an encoder is kept alike"""
    keeps_fc1_input: Array
    """1 if the input of a feed-forward layer is kept alike"""
    trains_output: Array
    """1 if the matrix that makes logits or answers is trained"""
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
    convolution: Array
    """1 if a convolution over three positions is beside the first layer"""
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
        """Width of all keys of a position, and of all values."""
        return self.kv_heads * self.head_dim

    @property
    def grouped(self) -> NDArray[np.bool_]:
        """Whether several queries share a key."""
        return self.kv_heads < self.heads


@dataclass(frozen=True, kw_only=True)
class LayerStack(Entries):
    """Identical layers: those of an encoder, or of a decoder."""

    layers: Array
    """layers on a stage of each kind, [n, s]; one that is used several times counts as several"""
    backward_layers: Array
    """layers among them with a backward pass: the others lie below everything that is trained, [n, s]"""
    length: Array
    """positions of a sequence, [n]"""
    memory: Array
    """positions before each sequence whose keys and values its layers make again, [n]"""
    keys: Array
    """keys that a query sees, averaged over positions and layers, [n]"""
    distances: Array
    """distances that scores have a term for; 0: they have none, [n]"""
    computed_keys: Array
    """keys that a fused kernel computes a query's scores of, averaged alike, [n]"""
    encoder_length: Array
    """positions of the encoder that a decoder's layers attend to; 0: none, [n]"""

    @property
    def key_length(self) -> Array:
        """Positions that have keys: those of a sequence, and of the memory before it."""
        return self.length + self.memory


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
    embeds: Array
    """1 on stages with the embedding"""
    trains_embedding: Array
    """1 on stages with the embedding, or a norm of it, if it is trained"""
    predicts: Array
    """1 on stages with the head and the loss"""
    position: Array
    """index of the stage, from 0"""
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
    zero: Array
    """ZeRO stage"""
    deepspeed: Array
    """1 if DeepSpeed shares the training state"""

    @property
    def world(self) -> Array:
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def replicas(self) -> Array:
        """Ranks that hold the same weights."""
        return self.context * self.data

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
    optimizer_bytes: Array
    """bytes of optimizer states that a rank holds for each parameter of its stage"""
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
class AttentionShapes(Entries):
    """What attention keeps for its backward pass besides queries, keys, values and its output, [n]."""

    key_copies: Array
    """copies of keys and values, averaged over layers"""
    score_biases: Array
    """1 where scores have distance biases, and are not written out: the kernel keeps a bias for every score"""
    shared_score_masks: Array
    """masks with these biases, of all heads and one row, that the layers of a rank share; 0: each layer keeps its own,
    for every row"""
    masks_of_rows: Array
    """1 where each row of each micro-batch has shared masks of its own"""
    score_bytes: Array
    """bytes of each score of a head where scores are written out; 0: the kernel keeps none"""
    cross_score_bytes: Array
    """bytes of each score of cross-attention, where scores are written out; 0: none"""
    score_share: Array
    """share of the keys whose scores are written out, averaged over layers"""
    max_score_share: Array
    """share of the keys whose scores are written out, in the layer with the most"""
    row_pair_bytes: Array
    """bytes of each pair of a query and a key, in each row of a micro-batch and for all heads"""
    pair_bytes: Array
    """bytes of each pair of query and key that has a score, for all heads and rows together"""
    score_gradient_bytes: Array
    """bytes of each score that the backward pass of a softmax takes, in models of a vocabulary small enough that the
    loss takes less"""
    freed_score_bytes: Array
    """bytes of `score_bytes` that are free by then"""


@dataclass(frozen=True, kw_only=True)
class KernelShapes(Entries):
    """What the kernels of a software stack keep in memory, [n]."""

    attention: Array
    """index into KERNELS"""
    fused_norms: Array
    """1 if a norm is one kernel, 0 if it is written in several operations"""
    norm_bytes: Array
    """bytes that a norm keeps for each element besides its input"""
    ffn_tensors: Array
    """number of tensors of the feed-forward width that are kept for the backward pass"""
    keeps_products: Array
    """1 where selective recomputation keeps only every second matrix product and attention's output"""
    logit_bytes: Array
    """peak bytes for each position and vocabulary entry, where all positions are one chunk"""
    saved_logit_bytes: Array
    """the part of them that is saved for the backward pass"""
    chunk_logit_bytes: Array
    """the same, for the positions of one chunk of several"""
    sampled_share: Array
    """share of positions at which a token is sampled"""
    head_gradient_bytes: Array
    """bytes of each value of the gradient of the head's weight, beside the gradient of all logits; 0: not counted"""
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


@dataclass(frozen=True, kw_only=True)
class DeviceSpeeds(Entries):
    """Speeds of one device and of its links, [n]."""

    generation: Array
    """index into GENERATIONS"""
    peak_flops: Array
    """peak of matrix products in 16 bits, or in fp32 if the model computes in fp32"""
    memory_bytes_per_s: Array
    processors: Array
    """processors that work on tiles of a matrix product at the same time"""
    link_bytes_per_s: Array
    """speed of one device to others of its node, one way"""
    network_bytes_per_s: Array
    """speed of one device to other nodes, one way"""
    per_node: Array
    """devices of a node"""


@dataclass(frozen=True, kw_only=True)
class StepWorkload(Entries):
    """Workload of a step: the model, its split into stages, the layout, and the kernels and devices that run it."""

    model: ModelShapes
    stacks: tuple[LayerStack, ...]
    stages: StageShapes
    layout: LayoutSizes
    step: StepSettings
    attention: AttentionShapes
    kernels: KernelShapes
    device: DeviceSpeeds
    others: tuple["StepWorkload", ...] = ()
    """a second model, which reads the micro-batches of a step before this one does: a generator or a frozen teacher"""

    @property
    def models(self) -> tuple["StepWorkload", ...]:
        """The workload of each model of the step."""
        return self, *self.others

    @property
    def micro_batches(self) -> Array:
        """Micro-batches that each rank processes in a step."""
        return self.step.sequences / (self.layout.data * self.step.micro_sequences)

    @property
    def length(self) -> Array:
        """Positions of a sequence, of both stacks together: what travels between stages."""
        return sum((stack.length for stack in self.stacks), np.zeros_like(self.model.hidden))

    @property
    def parameters(self) -> Array:
        """Parameters that one tensor rank of a stage holds, [n, s]."""
        return self.stages.sharded_parameters / self.layout.tensor[:, None] + self.stages.replicated_parameters

    @property
    def trained(self) -> Array:
        """Trained parameters among `parameters`: those with gradients and optimizer states."""
        return self.stages.sharded_trained / self.layout.tensor[:, None] + self.stages.replicated_trained

    @property
    def in_flight(self) -> Array:
        """Most micro-batches, each of one chunk of a stage, whose activations the stage holds at once, [n, s]: those
        forwarded before the first backward pass, and one more (Narayanan et al. 2021, arXiv 2104.04473, section 2.2;
        interleaved as megatron-core does)."""
        pipeline, virtual = self.layout.pipeline[:, None], self.layout.virtual[:, None]
        after = pipeline - 1 - self.stages.position
        plain = after + 1
        interleaved = 2 * after + (virtual - 1) * pipeline + 1
        every = self.micro_batches[:, None] * virtual
        return np.minimum(np.where(virtual > 1, interleaved, plain), every)

    @property
    def kept_score_biases(self) -> Array:
        """Distance biases that each layer keeps for every score."""
        return np.where(self.attention.shared_score_masks > 0, 0.0, self.attention.score_biases)

    @property
    def tied_parameters(self) -> Array:
        """Values of an embedding that makes the logits of the same stage, too, [n, s]."""
        table = self.model.ties_output * self.model.vocabulary * self.model.embedding_dim / self.layout.tensor
        return table[:, None] * self.stages.embeds * self.stages.predicts

    @property
    def logit_columns(self) -> Array:
        """Vocabulary entries whose logits a rank holds, or answers of a task head."""
        logits = self.model.vocabulary / np.where(self.kernels.logits_sharded > 0, self.layout.tensor, 1.0)
        return np.where(self.model.answers > 0, self.model.answers, logits)
