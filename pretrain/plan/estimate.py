"""What a run costs, from its config alone: parameters, floating-point operations, steps. No torch."""

import math
from dataclasses import dataclass

from pretrain.config.model import Model
from pretrain.config.optimizer import AdafactorOptimizer, Optimizer
from pretrain.config.run_config import RunConfig
from pretrain.plan.layout import Layout
from pretrain.plan.ramp import batch_sequences


def num_parameters(model: Model, padded: bool = True) -> int:
    """Trainable parameters, a tied embedding once. `padded`: as built, with the rows that round the vocabulary up;
    otherwise with the vocabulary's own rows, as papers count."""
    hidden, ffn, attention = model.hidden, model.ffn_width, model.heads * model.head_width
    rows = _rows(model, padded)
    norm = (2 if model.norm_type == "layer" else 1) * hidden
    self_attention = 4 * hidden * attention + model.bias * (3 * attention + hidden) + norm
    cross_attention = self_attention if model.is_encoder_decoder else 0
    inner = 2 * ffn if model.gated else ffn
    feed_forward = (inner + ffn) * hidden + model.bias * (inner + hidden) + norm
    total = rows * hidden
    for stack, layers in enumerate(model.stacks):
        if layers:
            length = model.label_length if stack else model.sequence_length
            total += layers * (self_attention + stack * cross_attention + feed_forward)
            total += norm if model.norm == "pre" else 0
            total += (length + model.position_offset) * hidden if model.positions == "learned" else 0
            total += model.relative_buckets * model.heads if model.positions == "relative" else 0
            total += model.segments * hidden + norm * model.embedding_norm
    if model.capabilities.masked_head:
        total += hidden * hidden + hidden + norm + rows  # of masked tokens
        total += hidden * hidden + hidden + 2 * hidden + 2 if model.pooled_head else 0
    return total + (0 if model.tied_head else rows * hidden)


def training_flops_per_token(model: Model) -> float:
    """Floating-point operations of forward and backward per token of a full sequence (of an encoder-decoder, per token
    of its input).

        3 * (2 * (layers * layer weights + vocabulary * hidden) + sum over layers of 4 * keys * heads * head width)

    A multiply-add is two operations; backward is twice forward (Kaplan et al. 2020, arXiv 2001.08361, section 2.1;
    the attention term as Chowdhery et al. 2022, arXiv 2204.02311, appendix B). Unlike both, `keys` counts only what a
    query sees: half the sequence under a causal mask, less in a band. So this is the work that the model asks for,
    whatever the kernels do; recomputed activations, padding, norms and softmax are not counted. An encoder-decoder's
    layers count at the positions that they work on, and so does the vocabulary.
    """
    inputs, labels = model.sequence_length, model.label_length
    projection = model.hidden * model.heads * model.head_width
    weights = 4 * projection + (3 if model.gated else 2) * model.hidden * model.ffn_width
    scores = 2 * model.heads * model.head_width  # multiply-adds for each key that a query sees
    encoder_layers, decoder_layers = model.stacks
    multiply_adds = 0.0
    for layers, length, causal in ((encoder_layers, inputs, False), (decoder_layers, labels, True)):
        for layer in range(layers):
            keys = model.attention.of_layer(layer).mean_keys(length, causal)
            multiply_adds += length * (weights + scores * keys)
    if model.is_encoder_decoder:
        multiply_adds += decoder_layers * (2 * (inputs + labels) * projection + labels * scores * inputs)
    head = _rows(model, padded=False) * model.hidden
    if model.capabilities.masked_head:
        head += model.hidden * model.hidden
    return 6 * (multiply_adds + labels * head) / inputs


@dataclass(frozen=True)
class StateBytes:
    """What one rank holds of a training state when a step's gradients are complete."""

    weights: float
    """those computed with"""
    gradients: float
    optimizer: float
    """moments of each weight, and fp32 weights where they are not the ones computed with"""

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def num_moments(optimizer: Optimizer) -> int:
    """Values that the optimizer keeps for each weight of a matrix."""
    if isinstance(optimizer, AdafactorOptimizer):
        return 1 if optimizer.beta1 else 0
    return 2


def state_bytes(parameters: float, layout: Layout, precision: str, moments: int = 2) -> StateBytes:
    """For the `parameters` of one tensor and pipeline rank, and `num_moments` of the optimizer.

    Gradients are accumulated in fp32 whatever the precision (Rajbhandari et al. 2020, arXiv 1910.02054, section 3, has
    half precision gradients). Not counted: activations, the buckets of an exchange, the small weights that stage 3
    keeps everywhere, and Adafactor's moments of vectors, rows and columns (4 * (rows + columns) for rows * columns
    weights). Offloaded states are counted too."""
    width = 4 if precision == "fp32" else 2
    shares = layout.zero > 0 and (layout.replicas > 1 or layout.shards_by_deepspeed)
    own = parameters / layout.replicas if shares else parameters
    copies = precision != "fp32" or layout.shards_by_deepspeed
    return StateBytes(
        weights=width * (own if layout.zero == 3 else parameters),
        gradients=4 * (own if layout.zero >= 2 else parameters),
        optimizer=4 * (moments + copies) * own,
    )


def run_length(config: RunConfig) -> tuple[int, int]:
    """(optimizer steps, tokens) at the end of the run. One given in tokens ends with the first whole batch that reaches
    them; `tokens` counts that batch."""
    train, length = config.train, config.model.sequence_length
    last_step, last_token = train.steps or math.inf, train.tokens or math.inf
    ramp_tokens = config.batch.ramp.tokens if config.batch.ramp else 0
    steps = tokens = 0
    if config.batch.short is not None:
        short_tokens = config.batch.sequences * config.batch.short.sequence_length  # of a batch
        steps = int(min(config.batch.short.steps, last_step, -(-last_token // short_tokens)))
        tokens = steps * short_tokens
    while steps < last_step and tokens < min(ramp_tokens, last_token):
        tokens += batch_sequences(config.batch, tokens) * length
        steps += 1
    batch_tokens = config.batch.sequences * length
    left = int(last_step) - steps if train.tokens is None else max(0, -(-(train.tokens - tokens) // batch_tokens))
    return steps + left, tokens + left * batch_tokens


def _rows(model: Model, padded: bool) -> int:
    assert model.vocabulary is not None, "the vocabulary is resolved before it is used"
    return model.padded_vocabulary if padded else model.vocabulary
