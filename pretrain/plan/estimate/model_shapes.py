"""Shapes that a model's parts give to a step's workload. This is the one file of the planner that knows parts of models
by name: a new part is planned once it has parameter specs (`pretrain/model_spec`), a pattern its mean keys
(`pretrain/config/patterns/base.py`), and what else it computes or keeps is said here."""

from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.recipes.replaced_tokens import ReplacedTokens
from pretrain.config.attention import Dense
from pretrain.config.model import Model
from pretrain.config.patterns.base import PatternSettings
from pretrain.config.run_config import RunConfig
from pretrain.model_spec.gradients import model_gradients
from pretrain.model_spec.logits import positions_at_once
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.layer_stacks import layers_behind
from pretrain.plan.estimate.parts.registry import works_of
from pretrain.plan.estimate.shapes import (
    KERNELS,
    AttentionShapes,
    ComparisonShapes,
    KernelShapes,
    ModelShapes,
)


def model_shapes(model: Model, count: int, embedding_lookups: int = 1) -> ModelShapes:
    """Widths and parts of `model`, `count` times."""
    has_dense = model.task_head is not None and model.task_head.kind in ("detector", "span")
    has_transform = model.capabilities.masked_head if model.task_head is None else model.has_pooler or has_dense
    answers = 0 if model.task_head is None or model.has_vocabulary_logits else model.task_head.trained_outputs
    gradients = model_gradients(model)
    return ModelShapes.repeat(
        count,
        hidden=model.hidden,
        gated=model.gated,
        heads=model.heads,
        kv_heads=model.num_kv_heads,
        head_dim=model.dim_per_head,
        value_dim=model.value_dim,
        rotary_dim=model.rotary_dim * (model.positions.name == "rotary"),
        embedding_dim=model.embedding_dim,
        vocabulary=model.padded_vocab_size,
        answers=answers,  # beside logits they count for nothing
        label_length=model.label_length,
        rotary=model.positions.name == "rotary",
        distance_rows=model.distance_rows,
        **_distances(model),
        last_layer_uses=model.last_layer_uses,
        qk_norm=model.qk_norm and model.qk_norm_span == "head",
        all_heads_norm=model.qk_norm and model.qk_norm_span == "all_heads",
        layer_norms=4 if model.norm == "sandwich" else 2,
        adapter_dim=0 if model.finetune.adapters is None else model.finetune.adapters.size,
        trains_output=gradients.logits if model.has_vocabulary_logits else gradients.answers,
        trains_transform=gradients.transform,
        trains_embedding_projection=gradients.embedding_projection,
        embedding_norm=model.embedding_norm,
        final_norm=model.norm_first,
        head_tensors=4 if has_transform else 2,
        head_transform=has_transform,
        embedding_projection=model.embedding_size is not None,
        positions_beside_first=sum(part.positions_beside_first(model) for part in works_of(model)),
        further=len(layers_behind(model)),
        embedding_lookups=embedding_lookups,
        shared_layers=model.shared_layers,
        ties_output=model.ties_output,
    )


def _distances(model: Model) -> dict[str, int]:
    """Fields of `ModelShapes` about vectors of distances: what is computed and kept of them."""
    width = model.heads * model.dim_per_head
    linears = model.positions.distance_linears
    if not linears:
        return {
            "kept_distance_rows": 2 * model.distance_rows,
            "distance_linears": 0,
            "distance_features": 0,
            "bias_copies": 0,
        }
    return {
        "kept_distance_rows": 0,
        "distance_linears": linears,
        "distance_features": (3 if linears == 1 else 2) * width,
        "bias_copies": 0 if model.capabilities.key_bias else width,
    }


def kernel_shapes(config: RunConfig, tensor: Array, width: float, on_cpu: bool) -> KernelShapes:
    """Shapes of what this project's kernels keep in memory. `tensor`: tensor ranks of each layout, [n]. `width`: bytes
    of an activation."""
    model, kernels = config.model, config.run.kernels
    fused = kernels != "plain"
    mask_bytes = _mask_bytes(config)
    vocabulary, chunked = model.padded_vocab_size, config.precision != "fp16"
    judged = _judged_bytes(config, width)
    logit_bytes, chunk_logit_bytes = _logit_bytes(config, width, (tensor == 1) & (not on_cpu))
    return KernelShapes.repeat(
        len(tensor),
        attention=KERNELS.index("flash2"),
        fused_norms=1,
        norm_bytes=0 if fused else _norm_bytes(model, width, on_cpu),
        # torch's kernel for GPUs is of bf16.
        grouped_products=config.precision == "bf16" or on_cpu,
        ffn_tensors=_ffn_tensors(model, width, kernels),
        fc2_input_tensors=_fc2_input_tensors(model, fused),
        live_ffn_tensors=2 + model.gated if fused else (2 + model.bias) * (1 + model.gated),
        keeps_products=0,
        logit_bytes=logit_bytes.clip(min=judged),
        # Beside more bytes for each logit it matters to no peak.
        chunk_product_bytes=width if _in_place(config) and width < 4 else 0,
        sampled_share=_sampled_share(config),
        saved_logit_bytes=_saved_logit_bytes(config, width),
        chunk_logit_bytes=chunk_logit_bytes.clip(min=judged),
        head_gradient_bytes=width,
        # On a GPU the sum is scaled into another in fp32, which is then rounded.
        chunk_head_gradient_bytes=width if on_cpu else 4 + (width if width < 4 else 0),
        logits_sharded=1,
        logit_positions=[positions_at_once(vocabulary // int(ranks)) if chunked else inf for ranks in tensor],
        angle_bytes=0 if fused else 4,
        dropout_bytes=(model.dropout > 0) * mask_bytes,
        ffn_dropout_bytes=(model.ffn_dropout > 0) * mask_bytes,
        **_lora_dropout_bytes(model, width + mask_bytes),
        # The largest value is found; then all are scaled and rounded, by one kernel or by two.
        rounding_bytes=5 if kernels == "compiled" else 9,
    )


def _logit_bytes(config: RunConfig, width: float, alone: NDArray[Any]) -> tuple[Array, Array]:
    """Bytes for each position and vocabulary entry, [n], where all positions are one chunk, and of a chunk of several,
    whose logits are kept. `alone` [n]: whether one rank, on a GPU, has all logits."""
    if _in_place(config):  # a product's logits, beside those before a bias or a cap, and then their gradient
        of_all = np.full(alone.shape, width * (1 + config.model.capabilities.head_bias + _is_capped(config)))
        return of_all, of_all
    half = width if width < 4 else 0.0
    # Probabilities in fp32, in the place of logits in fp32; else beside logits, then beside their gradient. Of a chunk,
    # all three are there. A bias is added to a copy of the logits. One rank on a GPU makes probabilities beside logits
    # in fp32, before there is any gradient (`pretrain/models/cross_entropy.py`).
    whole = np.where(alone, half + 8, 6 if half else 8 if config.model.capabilities.head_bias else 4)
    chunk = np.where(alone, half + 8, 8 if half else 4)
    if config.objective.label_smoothing or config.objective.z_loss:
        # A gradient of its own, in fp32, as the cross entropy has one; and their sum.
        whole = np.maximum(whole, 12)
        chunk = np.maximum(chunk, 12 + np.where(alone, width, half))
    capped = width * _is_capped(config)  # beside the others
    return capped + whole, capped + chunk


def _saved_logit_bytes(config: RunConfig, width: float) -> float:
    """The part of them that is saved for the backward pass."""
    of_loss = width if _in_place(config) else 4 * (1 + _compares_predictions(config))
    return of_loss + width * _is_capped(config)


def _in_place(config: RunConfig) -> bool:
    """Whether the loss reads logits in their own numbers, and writes their gradient in their place."""
    return config.run.kernels == "triton" and not _compares_predictions(config)


def _is_capped(config: RunConfig) -> bool:
    return config.model.final_logit_softcap is not None


def _judged_bytes(config: RunConfig, width: float) -> float:
    """Bytes for each position and vocabulary entry, logits included, while logits are compared with a teacher's: in
    fp32 these, the logarithms of both models' probabilities, and the probabilities of one. 0 of other objectives."""
    return (22.0 if width < 4 else 20.0) if _compares_predictions(config) else 0.0


def _sampled_share(config: RunConfig) -> float:
    """Share of positions at which a generator samples a token; 0 of other objectives."""
    objective = config.objective
    if not isinstance(objective, ReplacedTokens) or config.model.task_head is not None:
        return 0.0
    return objective.noise_density


def _compares_predictions(config: RunConfig) -> bool:
    settings = config.distillation
    return settings.teacher is not None and settings.kl_weight > 0 and config.model.task_head is None


def comparison_shapes(config: RunConfig, count: int) -> ComparisonShapes:
    """Shapes of the loss's comparison of layers, `count` times."""
    settings = config.distillation
    return ComparisonShapes.repeat(
        count,
        layers=config.model.layers if settings.compares_layers else 0,
        projects=settings.hidden_weight > 0,
        scores=settings.attention_weight > 0,
    )


def attention_shapes(config: RunConfig, count: int, width: float, on_cpu: bool) -> AttentionShapes:
    """Shapes of what attention keeps in memory, `count` times. `width`: bytes of an activation."""
    model, mask_bytes = config.model, _mask_bytes(config)
    learned = model.positions.name == "relative"
    falls = model.positions.name == "alibi"
    biased = learned or falls
    drops = model.attention_dropout > 0
    writes_scores = drops or model.needs_explicit_scores
    patterns = [model.attention.layer_pattern(layer) for layer in range(max(model.stacks))]
    if writes_scores:
        shares = [1.0 if biased else _score_share(pattern, model) for pattern in patterns]
        key_copies = [float(share < 1) for share in shares]
    else:
        shares, key_copies = [1.0], [_key_copies(pattern, model, on_cpu) for pattern in patterns]
    # Flash attention and cuDNN's kernel do, in half precision and without a mask (`attention/fused_kernels.py`).
    takes_grouped = not (on_cpu or width > 2 or writes_scores or biased or model.has_encoder)
    pairs = 1.0 if writes_scores or (learned and not model.is_encoder_decoder) else 0.0
    rows = 8.0 if model.distance_rows else 0.0  # which row of the tables each pair picks
    rounded = width if width < 4 else 0.0  # probabilities are made in fp32
    capped = width if model.attention_logit_softcap is not None else 0.0
    dropped = mask_bytes + width if drops else rounded
    return AttentionShapes.repeat(
        count,
        key_copies=float(np.mean(key_copies)),
        copies_grouped_keys=1 - takes_grouped * float(np.mean([isinstance(pattern, Dense) for pattern in patterns])),
        score_biases=biased and not writes_scores,
        shared_score_masks=_distinct_masks(model) if falls and not writes_scores else 0,
        masks_of_rows=model.has_encoder,  # whose rows have padding
        score_bytes=4 + capped + dropped if writes_scores else 0.0,
        live_score_bytes=(width + 4 if width < 4 else 4.0) + 4 if writes_scores else 0.0,
        cross_score_bytes=4 + dropped if drops else 0.0,
        score_share=float(np.mean(shares)),
        max_score_share=max(shares),
        pair_bytes=pairs + rows,
        score_gradient_bytes=8.0 if capped else 0.0,
        freed_score_bytes=dropped,
    )


def _lora_dropout_bytes(model: Model, element_bytes: float) -> dict[str, float]:
    """Bytes per position of the dropped inputs of low-rank updates, by the name of the field."""
    lora, queries = model.finetune.lora, model.heads * model.dim_per_head
    targets = [] if lora is None or not lora.dropout else lora.targets
    features = {
        "lora_dropout_bytes": {"qkv": model.hidden, "fc1": model.hidden},
        "lora_split_dropout_bytes": {"projection": queries, "fc2": model.ffn_dim},
        "lora_cross_dropout_bytes": {"cross_q": model.hidden, "cross_kv": model.hidden, "cross_projection": queries},
    }
    return {
        field: element_bytes * sum(count for target, count in inputs.items() if target in targets)
        for field, inputs in features.items()
    }


def _distinct_masks(model: Model) -> int:
    """Masks that layers do not share, as their heads attend by different rules."""
    length = model.sequence_length if model.has_encoder else None
    rules = set()
    for layer in range(max(model.stacks)):
        pattern = model.attention.layer_pattern(layer)
        rules.add(tuple(pattern.head(layer, head, length) for head in range(model.heads)))
    return len(rules)


def _mask_bytes(config: RunConfig) -> float:
    """Bytes of an element's dropout mask, which fused kernels draw again for the backward pass."""
    return 1.0 if config.run.kernels == "plain" else 0.0


def _score_share(pattern: PatternSettings, model: Model) -> float:
    """Share of a sequence's keys that a chunk of queries meets (`attention/patterns/banded.py`)."""
    return 1.0 if model.has_encoder else pattern.chunk_keys(model.sequence_length) / model.sequence_length


def _key_copies(pattern: PatternSettings, model: Model, on_cpu: bool) -> float:
    """On a CPU a kernel goes through windows and keeps none (`attention/patterns/merged.py`). Where biases by distance
    are learned, it multiplies copies of queries and keys, of a window's size; of an encoder's padded rows it keeps what
    it made of tokens, half of that size, beside the rows."""
    if not on_cpu:
        return pattern.key_copies
    padded = 0.5 if model.has_encoder and not isinstance(pattern, Dense) else 0.0
    return padded + (model.positions.name == "relative")


def _norm_bytes(model: Model, width: float, on_cpu: bool) -> float:
    """`KernelShapes.norm_bytes`: torch has no kernel for RMS norms on a CPU; those of Gemma are computed in fp32, which
    on a GPU keeps a copy in fp32 in place of the input."""
    in_fp32 = 4.0 - (0 if on_cpu else width) if model.norm_type == "rms_zero_centered" and width < 4 else 0.0
    written_out = on_cpu and model.norm_type != "layer"
    return in_fp32 + (written_out * 4.0 if in_fp32 else written_out * width)


def _ffn_tensors(model: Model, width: float, kernels: str) -> float:
    """Number of tensors of the feed-forward width that are kept for the backward pass. A gated layer keeps the gate,
    its activation, the value and their product; fused, it recomputes the activation, and compiled, ReLU keeps a byte of
    each input. `width`: bytes of an activation."""
    if model.gated:
        return 4 if kernels == "plain" else 3
    if model.activation != "relu" or kernels == "triton":
        return 2
    if kernels == "compiled":
        return 1 + 1 / width
    return 1 + (model.ffn_dropout > 0)  # ReLU keeps its output, which dropout copies


def _fc2_input_tensors(model: Model, fused: bool) -> float:
    """Number of them that the last product's weight alone needs: not ReLU's output."""
    return float(model.gated or model.activation != "relu" or fused or model.ffn_dropout > 0)
