"""What recurrent layers compute and keep: every matrix once for each position, and each pair of a decoder's and an
encoder's position. No layout divides a row of them."""

from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.products import positions_of
from pretrain.plan.estimate.shapes import LayerStack
from pretrain.plan.estimate.workload import StepWorkload


def macs_of_position(stack: LayerStack) -> Array:
    """Multiply-adds of one layer's forward pass for each position, [n]."""
    found: Array = stack.cell_macs + stack.encoder_length * stack.pair_macs
    return found


def flops(work: StepWorkload, stack: LayerStack) -> Array:
    """Operations of the layers of a stack and a micro-batch, with what is recomputed, [n, s]."""
    forward = 2 * positions_of(work, stack) * macs_of_position(stack)
    again = (work.step.recompute == 2)[:, None]
    found: Array = (stack.layers + (2 + again) * stack.backward_layers) * forward[:, None]
    return found


def kept_bytes(work: StepWorkload, stack: LayerStack) -> Array:
    """Bytes that one layer keeps of a micro-batch, [n]: gates, states and inputs, and of attention what it compares."""
    values = stack.cell_values + stack.encoder_length * stack.pair_values
    kept: Array = positions_of(work, stack) * (values * work.step.activation_bytes + work.kernels.dropout_bytes)
    return kept
