"""What layers of experts compute, keep, move and send besides what other layers do, on one rank.

Each position goes to `top_k` experts, and a rank has that many rows for each, whichever experts they go to. Where ranks
share experts, as many rows are taken to arrive as are sent: tokens are spread evenly over these ranks. Kept bytes are
counted tensor by tensor, and moved ones kernel by kernel, of what `models/experts.py`, `grouped.py` and `routing.py`
do."""

from dataclasses import dataclass, replace

import numpy as np

from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.shapes import LayerStack
from pretrain.plan.estimate.workload import StepWorkload

_INDEX_BYTES = 8


@dataclass(frozen=True)
class ExpertProduct:
    """A product of all experts: x[rows, depth] @ w[depth, columns], the rows shared evenly among so many matrices."""

    name: str
    """the product of a feed-forward layer that it takes the place of (`model_spec/gradients.py`)"""
    rows: Array
    columns: Array
    depth: Array
    matrices: Array


def expert_products(work: StepWorkload, stack: LayerStack) -> list[ExpertProduct]:
    """Products of a layer's experts in a micro-batch; none where no choice has experts."""
    if not stack.has_experts:
        return []
    model, ffn, rows = work.model, stack.expert_ffn / work.layout.expert_tensor, _rows(work, stack)
    matrices = stack.experts / work.layout.expert
    return [
        ExpertProduct("fc1", rows, (1 + model.gated) * ffn, model.hidden, matrices),
        ExpertProduct("fc2", rows, model.hidden, ffn, matrices),
    ]


def update_products(stack: LayerStack, grouped: ExpertProduct) -> tuple[ExpertProduct, ExpertProduct]:
    """Products of the update of each expert beside `grouped`: by A, and by B."""
    rank = np.maximum(stack.lora_rank(grouped.name), 1)
    return replace(grouped, columns=rank), replace(grouped, depth=rank)


def router_product(work: StepWorkload, stack: LayerStack) -> tuple[Array, Array, Array]:
    """Rows, columns and depth of the product that makes a layer's logits, in fp32: by tensor ranks of their own
    positions under sequence parallelism, otherwise by each of all."""
    return _positions(work, stack) / work.layout.sequence_slices, stack.experts, work.model.hidden


def kept_bytes(work: StepWorkload, stack: LayerStack, keeps_inputs: Array) -> Array:
    """Bytes that a layer keeps of a micro-batch besides the features of its experts, [n]: inputs of these as rows, as
    far as the layer `keeps_inputs`, and outputs, where rows lie, what routes were made of, and what updates make of
    both inputs by A."""
    width, top_k, positions = work.step.activation_bytes, stack.top_k, _positions(work, stack)
    of_row = (1 + keeps_inputs) * work.model.hidden * width + (2 + 2 * _exchanges(work)) * _INDEX_BYTES
    of_row = of_row + (stack.lora_rank("fc1") + stack.lora_rank("fc2")) * width
    # Under sequence parallelism weights are gathered, but for experts that tensor ranks do not split; a sum that they
    # are divided by is kept beside what it divides.
    unsplit, slices = work.layout.expert_slices > 1, work.layout.sequence_slices
    shares = (work.layout.sequence > 0) & ~unsplit
    divided = stack.divides_weights
    own = 4 * stack.router_values * stack.experts + top_k * _INDEX_BYTES + divided * (4 * top_k + 4)
    copies = np.where(shares | (divided > 0), 4.0, 0.0) / np.where(unsplit, slices, 1.0)
    own = own + np.where(shares | (divided > 0), 0.0, 4 * top_k)
    kept: Array = positions * (top_k * (of_row / work.layout.expert_slices + copies) + own / slices)
    return (stack.experts > 0) * kept


def kept_routes(work: StepWorkload, stack: LayerStack) -> Array:
    """Bytes of the experts of a micro-batch's positions, [n], which a layer that is recomputed keeps."""
    own = _positions(work, stack) / work.layout.sequence_slices
    found: Array = (work.step.recompute == 2) * own * stack.top_k * _INDEX_BYTES
    return found


def gradient_bytes(work: StepWorkload, stack: LayerStack) -> Array:
    """Most bytes that the backward pass of a layer takes beside what it keeps, less what it has freed by then, [n]:
    while outputs travel from the ranks of experts, in a layer that is recomputed; while gradients of outputs are made,
    in fp32; while these travel there; while that of the second matrices is made, with that of their inputs; or while
    that of the first matrices is, when all features are free."""
    model, width, tensor = work.model, work.step.activation_bytes, work.layout.expert_tensor
    positions, rows = _positions(work, stack) / work.layout.expert_slices, _rows(work, stack)
    of_hidden = rows * model.hidden * width
    features = rows * stack.expert_ffn / tensor * width
    matrix = stack.experts / work.layout.expert * stack.expert_ffn * model.hidden / tensor * width
    matrix = matrix * (stack.with_weight_gradient("fc1") > 0).any(axis=1)
    inner = 1 + model.gated
    # Without a kernel for all experts, results are made one by one and then joined.
    joined = 2 - work.kernels.grouped_products
    at_outputs = of_hidden + positions * model.hidden * (12 + width)
    # Outputs and these sorted, beside those that return; and gradients sent and received, when outputs are free.
    on_the_way = _exchanges(work) * 2 * of_hidden
    at_second = joined * features + matrix
    freed = work.kernels.ffn_tensors * features
    at_first = inner * features + joined * of_hidden + inner * matrix - of_hidden - freed
    most = np.maximum.reduce([at_outputs, on_the_way, at_second, at_first])
    found: Array = (stack.experts > 0) * most
    return found


def moved_bytes(work: StepWorkload, stack: LayerStack) -> tuple[Array, Array]:
    """Bytes that kernels read and write in a layer's forward and backward pass, [n], while rows are made of positions
    and positions of rows, besides products. The gradient of matrices is added up in fp32."""
    model, width, rows = work.model, work.step.activation_bytes, _rows(work, stack)
    positions = _positions(work, stack) / work.layout.expert_slices
    # Of each row: it is copied; its output is picked, weighted and added. Backward, an output's gradient is weighted,
    # rounded and stored, compared with the output, and an input's is picked and added.
    of_rows, of_rows_back = 5 * width + 16, 9 * width + 40
    # Of each position: what the router reads is made fp32, and sums begin with zeros and are rounded.
    of_position, of_position_back = 2 * width + 16, 4 * width + 28
    # Rows that arrive are sorted by expert, and results by the rank that they return to.
    sorting = 4 * width * _exchanges(work)
    of_rows, of_rows_back = of_rows + sorting, of_rows_back + sorting
    ranks = work.layout.expert_tensor * work.layout.expert
    matrices = stack.experts * (2 + model.gated) * stack.expert_ffn * model.hidden / ranks
    added_up = matrices * (8 + width)
    has = stack.experts > 0
    forward = model.hidden * (rows * of_rows + positions * of_position)
    backward = model.hidden * (rows * of_rows_back + positions * of_position_back) + added_up
    return has * forward, has * backward


def kernel_counts(stack: LayerStack) -> tuple[Array, Array]:
    """Kernels that a device starts for what `moved_bytes` counts, forward and backward, [n]: for each expert of a
    position they are the same, one after the other."""
    has = stack.experts > 0
    return has * (3 * stack.top_k + 20), has * (9 * stack.top_k + 20)


def separate_kernels(work: StepWorkload, grouped: ExpertProduct) -> tuple[Array, Array, Array]:
    """Kernels that a device starts for a product of all experts, and for the gradients of its inputs and of its
    matrices, [n], besides one for each: of each expert where none multiplies all. In 8 bits a matrix is rounded, for
    the gradient of inputs also transposed, and the result copied; of what makes that of a matrix both are padded and
    transposed. Factors are made for all experts at once, and rows rounded."""
    others, fp8 = grouped.matrices - 1, work.step.fp8 > 0
    apart = np.where(work.kernels.grouped_products > 0, 0.0, others)
    forward, of_input, of_matrix = (
        np.where(fp8, each * grouped.matrices + rounding, apart) for each, rounding in ((5, 30), (6, 30), (6, 20))
    )
    return forward, of_input, of_matrix


def route_bytes(work: StepWorkload, stack: LayerStack) -> tuple[Array, Array]:
    """Bytes of a micro-batch's routes that tensor ranks gather forward, or whose gradient they sum backward, [n], of
    all ranks: experts and weights under sequence parallelism, otherwise nothing forward. None are those of slices of
    which each tensor rank has its own computed."""
    of_weights = _positions(work, stack) * stack.top_k * 4
    shares = work.layout.sequence > 0
    own = shares & (work.layout.expert_slices > 1)
    backward = np.select([own, shares], [0.0, of_weights], 2 * of_weights)
    return np.where(shares & ~own, 3 * of_weights, 0.0), backward


def exchanged_bytes(work: StepWorkload, stack: LayerStack) -> tuple[Array, Array]:
    """Bytes of a micro-batch's rows that a rank has for all ranks that share a layer's experts, itself included,
    forward and backward, [n]: there and back again, and before that how many each expert gets."""
    of_rows = 2 * _rows(work, stack) * work.model.hidden * work.step.activation_bytes
    return _exchanges(work) * (of_rows + _INDEX_BYTES * stack.experts), _exchanges(work) * of_rows


def _exchanges(work: StepWorkload) -> Array:
    """1 where ranks share experts."""
    return np.where(work.layout.expert > 1, 1.0, 0.0)


def _positions(work: StepWorkload, stack: LayerStack) -> Array:
    return work.step.micro_sequences * stack.length / work.layout.context


def _rows(work: StepWorkload, stack: LayerStack) -> Array:
    """Rows of a rank's own positions, of which each other one that shares experts has as many."""
    return stack.top_k * _positions(work, stack) / work.layout.expert_slices
