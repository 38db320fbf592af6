"""What a run costs, from its config alone: parameters, floating-point operations, steps. No torch."""

import math
from dataclasses import dataclass

from pretrain.config.schema import Model, Optimizer, RunConfig
from pretrain.plan.layout import Layout
from pretrain.plan.ramp import batch_sequences


def num_parameters(model: Model, padded: bool = True) -> int:
    """Trainable parameters, a tied embedding once. `padded`: as built, with the rows that round the vocabulary up;
    otherwise with the vocabulary's own rows, as papers count."""
    hidden, ffn, attention = model.hidden, model.ffn_width, model.heads * model.head_width
    rows = _rows(model, padded)
    weights = _layer_weights(model)
    biases = 3 * attention + hidden + ffn + hidden
    norms = 2 * 2 * hidden
    embeddings = (rows + model.sequence_length) * hidden
    final_norm = 2 * hidden if model.norm == "pre" else 0
    head = 0 if model.tied_head else rows * hidden
    return model.layers * (weights + biases + norms) + embeddings + final_norm + head


def training_flops_per_token(model: Model) -> float:
    """Floating-point operations of forward and backward per token, averaged over the positions of a full sequence.

        3 * (2 * (layers * layer weights + vocabulary * hidden) + sum over layers of 4 * keys * heads * head width)

    A multiply-add is two operations; backward is twice forward (Kaplan et al. 2020, arXiv 2001.08361, section 2.1;
    the attention term as Chowdhery et al. 2022, arXiv 2204.02311, appendix B). Unlike both, `keys` counts only what a
    query sees: half the sequence under a causal mask, less in a band. So this is the work that the model asks for,
    whatever the kernels do; recomputed activations, padding rows, norms and softmax are not counted.
    """
    weights = model.layers * _layer_weights(model) + _rows(model, padded=False) * model.hidden
    pattern = model.attention.pattern
    keys = sum(
        mean_visible_keys(pattern[layer % len(pattern)], model.attention.window, model.sequence_length)
        for layer in range(model.layers)
    )
    return 3 * (2 * weights + 4 * keys * model.heads * model.head_width)


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
    if optimizer.name == "adafactor":
        return 1 if optimizer.beta1 else 0
    return 2


def state_bytes(parameters: float, layout: Layout, precision: str, moments: int = 2) -> StateBytes:
    """For the `parameters` of one tensor and pipeline rank, and `num_moments` of the optimizer.

    Gradients are accumulated in fp32 whatever the precision (Rajbhandari et al. 2020, arXiv 1910.02054, section 3, has
    half precision gradients). Not counted: activations, the buckets of an exchange, the small weights that stage 3
    keeps everywhere, and Adafactor's moments of vectors, rows and columns (4 * (rows + columns) for rows * columns
    weights). Offloaded states are counted too."""
    width = 4 if precision == "fp32" else 2
    shares = layout.zero > 0 and (layout.copies > 1 or layout.shards_by_deepspeed)
    own = parameters / layout.copies if shares else parameters
    copies = precision != "fp32" or layout.shards_by_deepspeed
    return StateBytes(
        weights=width * (own if layout.zero == 3 else parameters),
        gradients=4 * (own if layout.zero >= 2 else parameters),
        optimizer=4 * (moments + copies) * own,
    )


def mean_visible_keys(pattern: str, window: int, length: int) -> float:
    """Keys that a query sees, itself included, averaged over `length` positions."""
    width = length if pattern == "dense" else min(window, length)
    return width - width * (width - 1) / 2 / length


def run_length(config: RunConfig) -> tuple[int, int]:
    """(optimizer steps, tokens) at the end of the run. One given in tokens ends with the first whole batch that reaches
    them; `tokens` counts that batch."""
    train, length = config.train, config.model.sequence_length
    last_step, last_token = train.steps or math.inf, train.tokens or math.inf
    ramp_tokens = config.batch.ramp.tokens if config.batch.ramp else 0
    steps = tokens = 0
    while steps < last_step and tokens < min(ramp_tokens, last_token):
        tokens += batch_sequences(config.batch, tokens) * length
        steps += 1
    batch_tokens = config.batch.sequences * length
    left = int(last_step) - steps if train.tokens is None else max(0, -(-(train.tokens - tokens) // batch_tokens))
    return steps + left, tokens + left * batch_tokens


def _layer_weights(model: Model) -> int:
    """Entries of one layer's matrices: queries, keys, values, output, two of the feed-forward."""
    return 4 * model.hidden * model.heads * model.head_width + 2 * model.hidden * model.ffn_width


def _rows(model: Model, padded: bool) -> int:
    assert model.vocabulary is not None, "the vocabulary is resolved before it is used"
    return model.padded_vocabulary if padded else model.vocabulary
