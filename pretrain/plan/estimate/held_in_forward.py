"""Bytes that live for a moment in the forward pass of frozen layers. These keep little or nothing for a backward pass,
so that a rank may hold the most while it computes one; where layers are trained, the backward pass takes more."""

import numpy as np

from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.products import positions_of
from pretrain.plan.estimate.workload import LayerStack, StepWorkload


def forward_bytes(work: StepWorkload, saved: Array, messages: Array) -> Array:
    """Most bytes, [n, s], that frozen layers take in their forward pass beside the `saved` ones of a stage and those of
    `messages`, of which the first stage has none by then."""
    most = np.zeros_like(saved)
    absent = saved / np.maximum(work.in_flight, 1) + work.stages.embeds * messages
    keeps_inputs = (work.step.recompute == 2)[:, None]
    for stack in work.stacks:
        # Below everything that is trained: nothing of this micro-batch is saved yet.
        passing = _passing(work, stack)[:, None]
        is_below = (stack.backward_layers < stack.layers) | keeps_inputs & (stack.trained_layers < stack.layers)
        most = np.maximum(most, np.where(is_below, passing - absent, 0.0))
        is_frozen = (stack.backward_layers > 0) & (stack.trained_layers == 0) & ~keeps_inputs
        most = np.maximum(most, np.where(is_frozen, _unsaved(work, stack)[:, None], 0.0))
    return most


def _passing(work: StepWorkload, stack: LayerStack) -> Array:
    """Bytes, [n], that are there while a layer without a backward pass is computed: the input of the stage, that of the
    layer and its norm, and the most of attention's and the feed-forward layer's."""
    model, kernels, layout = work.model, work.kernels, work.layout
    positions, width = positions_of(work, stack), work.step.activation_bytes
    hidden = positions * width * model.hidden / layout.sequence_slices
    features = (model.query_dim + 2 * model.key_dim) * (1 + model.rotary) + model.query_dim
    scores = model.heads * stack.length * work.attention.score_share * work.attention.live_score_bytes
    written = work.attention.live_score_bytes > 0
    features = np.where(written, model.query_dim + 2 * model.key_dim, features)
    attention = positions * (width * features + scores) / layout.tensor
    feed_forward = hidden + positions * width * kernels.live_ffn_tensors * stack.active_ffn / layout.tensor
    most: Array = (2 + model.final_norm) * hidden + np.maximum(attention, feed_forward)
    return most


def _unsaved(work: StepWorkload, stack: LayerStack) -> Array:
    """Bytes, [n], that are there in the last feed-forward layer and not saved, less those that are saved after it."""
    model, kernels, layout = work.model, work.kernels, work.layout
    positions, width = positions_of(work, stack), work.step.activation_bytes
    keeps_qkv, keeps_fc1, keeps_fc2 = (1.0 * (stack.lora_rank(name) > 0) for name in ("qkv", "fc1", "fc2"))
    tensors = kernels.live_ffn_tensors - kernels.ffn_tensors + (1 - keeps_fc2) * kernels.fc2_input_tensors
    adapter = (model.adapter_dim > 0) * model.hidden + 2 * model.adapter_dim
    later = model.hidden * (width + kernels.dropout_bytes) + adapter * width
    outside = width * (2 - keeps_qkv - keeps_fc1) * model.hidden - later
    unsaved: Array = positions * (width * tensors * stack.active_ffn / layout.tensor + outside / layout.sequence_slices)
    return unsaved
