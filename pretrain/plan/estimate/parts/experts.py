"""Work of layers of experts on one rank: what they compute, keep, move and send besides what other layers do.

Each position goes to `top_k` experts, and a rank has that many rows for each, whichever experts they go to. Where ranks
share experts, as many rows are taken to arrive as are sent: tokens are spread evenly over these ranks. Kept bytes are
counted tensor by tensor, and moved ones kernel by kernel, of what `models/experts.py`, `grouped.py` and `routing.py`
do."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pretrain.config.model import Model
from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.entries import Array, Product
from pretrain.plan.estimate.model_work import ModelWork
from pretrain.plan.estimate.product_seconds import ProductTime, one_product, rounding_seconds
from pretrain.plan.estimate.products import operations_of, positions_of
from pretrain.plan.estimate.workload import LayerPasses, LayerStack, LayerWork, StepWorkload

_INDEX_BYTES = 8
_ROUNDING_BYTES = 9
"""bytes that are moved to round a number of an expert's to 8 bits, by whatever kernels: the largest is found, and then
all are scaled by one kernel and rounded by another"""


@dataclass(frozen=True)
class ExpertProduct:
    """A product of all experts: x[rows, depth] @ w[depth, columns], the rows shared evenly among so many matrices."""

    name: str
    """the product of a feed-forward layer that it takes the place of (`model_spec/gradients.py`)"""
    rows: Array
    columns: Array
    depth: Array
    matrices: Array

    @property
    def shape(self) -> Product:
        return self.rows, self.columns, self.depth


class ExpertsWork(ModelWork):
    """See `ModelWork`."""

    def first_layer(self, model: Model) -> int:
        """See `ModelWork`."""
        return 0 if model.experts is None else model.experts.dense_layers

    def layer(self, model: Model, number: int) -> LayerWork | None:
        """See `ModelWork`."""
        settings = model.experts
        if settings is None or not model.has_experts(number):
            return None
        size = model.expert_ffn_dim
        return ExpertLayerWork(
            shared_ffn=settings.shared * size,
            count=settings.count,
            top_k=settings.top_k,
            ffn_of_each=size,
            # Scores, logits for the term of these, and scores for each term of balance.
            router_values=1
            + sum(weight > 0 for weight in (settings.z_loss, settings.balance_loss, settings.sequence_loss)),
            divides_weights=settings.normalize,
        )


@dataclass(frozen=True, kw_only=True)
class ExpertLayerWork(LayerWork):
    """See `LayerWork`."""

    shared_ffn: float
    """features of the experts that every position passes through, together"""
    count: int
    top_k: int
    """experts that each position passes through"""
    ffn_of_each: int
    router_values: int
    """numbers that are kept for each position and expert"""
    divides_weights: bool
    """whether the weights of a position's experts are divided by their sum"""

    @property
    def ffn(self) -> float:
        """See `LayerWork`."""
        return self.shared_ffn

    @property
    def features(self) -> float:
        """See `LayerWork`."""
        return self.top_k * self.ffn_of_each

    def seconds(self, work: StepWorkload, c: Constants, stack: LayerStack) -> tuple[Array, Array]:
        """See `LayerWork`."""
        speed = work.device.memory_bytes_per_s * c.memory_share
        # Kernels that a device starts to move these: for each expert of a position the same, one after the other.
        kernels, kernels_back = 3 * self.top_k + 20, 9 * self.top_k + 20
        moved, moved_back = self._moved_bytes(work, stack)
        forward = moved / speed + kernels * c.launch_s
        backward = stack.backward_layers * (moved_back / speed + kernels_back * c.launch_s)[:, None]
        for grouped in self._products(work, stack):
            of_input, of_weight = stack.with_input_gradient(grouped.name), stack.with_weight_gradient(grouped.name)
            products = [(grouped, of_input, of_weight)]
            if stack.lora_rank(grouped.name).any():
                by_a, by_b = _update_products(stack, grouped)
                products += [
                    (by_a, of_input, stack.backward_layers),
                    (by_b, stack.backward_layers, stack.backward_layers),
                ]
            for one, inputs, weights in products:
                seconds = _grouped_product(work, c, one)
                forward = forward + seconds.forward
                backward = backward + seconds.gradient_seconds(inputs, weights)
        speed_of_fp32 = work.device.fp32_flops * c.per_generation("matmul", work.device.generation)
        routed = operations_of(self._router_product(work, stack)) / speed_of_fp32
        of_routed = stack.with_input_gradient("fc1") + stack.with_weight_gradient("fc1")
        return forward + routed, backward + of_routed * routed[:, None]

    def operations(self, work: StepWorkload, passes: LayerPasses) -> Iterator[Array]:
        """See `LayerWork`."""
        stack = passes.stack
        for grouped in self._products(work, stack):
            yield passes.of(grouped.name) * operations_of(grouped.shape)[:, None]
            if stack.lora_rank(grouped.name).any():
                for one, times in zip(
                    _update_products(stack, grouped), passes.update_counts(grouped.name), strict=True
                ):
                    yield times * operations_of(one.shape)[:, None]
        yield passes.of("fc1") * operations_of(self._router_product(work, stack))[:, None]

    def kept_bytes(self, work: StepWorkload, stack: LayerStack, keeps: Callable[[str], Array]) -> Array:
        """See `LayerWork`: inputs of experts as rows, as far as they are kept, and outputs, where rows lie, what routes
        were made of, and what updates make of both inputs by A."""
        width, top_k, positions = work.step.activation_bytes, self.top_k, positions_of(work, stack)
        of_row = (1 + keeps("fc1")) * work.model.hidden * width + (2 + 2 * _exchanges(work)) * _INDEX_BYTES
        of_row = of_row + (stack.lora_rank("fc1") + stack.lora_rank("fc2")) * width
        # Under sequence parallelism weights are gathered, but for experts that tensor ranks do not split; a sum that
        # they are divided by is kept beside what it divides.
        unsplit, slices = work.layout.expert_slices > 1, work.layout.sequence_slices
        shares = (work.layout.sequence > 0) & ~unsplit
        copied = shares | self.divides_weights
        of_router = 4 * self.router_values * self.count + top_k * _INDEX_BYTES + self.divides_weights * (4 * top_k + 4)
        copies = np.where(copied, 4.0, 0.0) / np.where(unsplit, slices, 1.0)
        own = of_router + np.where(copied, 0.0, 4 * top_k)
        kept: Array = positions * (top_k * (of_row / work.layout.expert_slices + copies) + own / slices)
        return kept

    def kept_when_recomputed(self, work: StepWorkload, stack: LayerStack) -> Array:
        """See `LayerWork`: which experts positions go to."""
        own = positions_of(work, stack) / work.layout.sequence_slices
        found: Array = (work.step.recompute == 2) * own * self.top_k * _INDEX_BYTES
        return found

    def gradient_bytes(self, work: StepWorkload, stack: LayerStack) -> Array:
        """See `LayerWork`, less what the layer has freed by then: while outputs travel from the ranks of experts, in a
        layer that is recomputed; while gradients of outputs are made, in fp32; while these travel there; while that of
        the second matrices is made, with that of their inputs; or while that of the first matrices is, when all
        features are free."""
        model, width, tensor = work.model, work.step.activation_bytes, work.layout.expert_tensor
        positions, rows = positions_of(work, stack) / work.layout.expert_slices, self._rows(work, stack)
        of_hidden = rows * model.hidden * width
        features = rows * self.ffn_of_each / tensor * width
        matrix = self.count / work.layout.expert * self.ffn_of_each * model.hidden / tensor * width
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
        most: Array = np.maximum.reduce([at_outputs, on_the_way, at_second, at_first])
        return most

    def sums(self, work: StepWorkload, stack: LayerStack) -> tuple[Array, Array]:
        """See `LayerWork`. Rows of experts are kept as they were gathered; those of a tensor rank's own slice are not
        gathered nor summed. Shared experts sum and gather as a layer of their own."""
        own: Array = np.where((work.layout.sequence > 0) & (work.layout.expert_slices > 1), 1.0, 0.0)
        shared: Array = np.where(stack.ffn > 0, 1.0, 0.0)
        return shared - own, shared - 1

    def sent_bytes(self, work: StepWorkload, stack: LayerStack) -> tuple[Array, Array]:
        """See `LayerWork`: of routes, of which tensor ranks gather experts and weights under sequence parallelism, and
        sum the gradient of weights; not those of slices of which each tensor rank has its own computed."""
        of_weights = positions_of(work, stack) * self.top_k * 4
        shares = work.layout.sequence > 0
        own = shares & (work.layout.expert_slices > 1)
        forward = np.where(shares & ~own, 3 * of_weights, 0.0)
        backward = np.select([own, shares], [0.0, of_weights], 2 * of_weights)
        ranks = work.layout.tensor
        sent: Array = forward * (ranks - 1) / ranks
        sent_back: Array = backward * (ranks - 1) / ranks
        return sent, sent_back

    def update_rows(self, work: StepWorkload, stack: LayerStack) -> Array:
        """See `LayerWork`."""
        rows: Array = (work.layout.expert_slices == 1) * self.top_k * stack.length
        return rows

    def replicated_values(self, work: StepWorkload) -> Iterable[tuple[str, Array]]:
        """See `LayerWork`: the router."""
        return [("fc1", self.count * work.model.hidden)]

    def routed_bytes(self, work: StepWorkload, stack: LayerStack) -> tuple[Array, Array]:
        """See `LayerWork`: rows, there and back again, and before that how many each expert gets."""
        of_rows = 2 * self._rows(work, stack) * work.model.hidden * work.step.activation_bytes
        return _exchanges(work) * (of_rows + _INDEX_BYTES * self.count), _exchanges(work) * of_rows

    def routed_messages(self) -> tuple[float, float]:
        """See `LayerWork`."""
        return 3.0, 2.0

    def _products(self, work: StepWorkload, stack: LayerStack) -> list[ExpertProduct]:
        """Products of a layer's experts in a micro-batch."""
        model, ffn, rows = work.model, self.ffn_of_each / work.layout.expert_tensor, self._rows(work, stack)
        matrices = self.count / work.layout.expert
        return [
            ExpertProduct("fc1", rows, (1 + model.gated) * ffn, model.hidden, matrices),
            ExpertProduct("fc2", rows, model.hidden, ffn, matrices),
        ]

    def _router_product(self, work: StepWorkload, stack: LayerStack) -> Product:
        """The product that makes a layer's logits, in fp32: by tensor ranks of their own positions under sequence
        parallelism, otherwise by each of all."""
        own = positions_of(work, stack) / work.layout.sequence_slices
        return own, np.full_like(own, self.count), work.model.hidden

    def _moved_bytes(self, work: StepWorkload, stack: LayerStack) -> tuple[Array, Array]:
        """Bytes that kernels read and write in a layer's forward and backward pass, [n], while rows are made of
        positions and positions of rows, besides products. The gradient of matrices is added up in fp32."""
        model, width, rows = work.model, work.step.activation_bytes, self._rows(work, stack)
        positions = positions_of(work, stack) / work.layout.expert_slices
        # Of each row: it is copied; its output is picked, weighted and added. Backward, an output's gradient is
        # weighted, rounded and stored, compared with the output, and an input's is picked and added.
        of_rows, of_rows_back = 5 * width + 16, 9 * width + 40
        # Of each position: what the router reads is made fp32, and sums begin with zeros and are rounded.
        of_position, of_position_back = 2 * width + 16, 4 * width + 28
        # Rows that arrive are sorted by expert, and results by the rank that they return to.
        sorting = 4 * width * _exchanges(work)
        of_rows, of_rows_back = of_rows + sorting, of_rows_back + sorting
        ranks = work.layout.expert_tensor * work.layout.expert
        matrices = self.count * (2 + model.gated) * self.ffn_of_each * model.hidden / ranks
        added_up = matrices * (8 + width)
        forward = model.hidden * (rows * of_rows + positions * of_position)
        backward = model.hidden * (rows * of_rows_back + positions * of_position_back) + added_up
        return forward, backward

    def _rows(self, work: StepWorkload, stack: LayerStack) -> Array:
        """Rows of a rank's own positions, of which each other one that shares experts has as many."""
        return self.top_k * positions_of(work, stack) / work.layout.expert_slices


def _update_products(stack: LayerStack, grouped: ExpertProduct) -> tuple[ExpertProduct, ExpertProduct]:
    """Products of the update of each expert beside `grouped`: by A, and by B."""
    rank = np.maximum(stack.lora_rank(grouped.name), 1)
    return replace(grouped, columns=rank), replace(grouped, depth=rank)


def _grouped_product(work: StepWorkload, c: Constants, grouped: ExpertProduct) -> ProductTime:
    """Seconds of a product of all experts."""
    every, fp8 = np.maximum(grouped.matrices, 1), work.step.fp8
    m, n, k = grouped.rows / every, grouped.columns, grouped.depth
    elements = every * m * k, every * k * n, every * m * n
    rounding, rounding_back = rounding_seconds(work, c, elements, fp8, _ROUNDING_BYTES)
    forward, of_input, of_weight = (
        one_product(work, c, shape, fp8, every) + rounded + kernels * c.launch_s
        for shape, rounded, kernels in zip(
            ((m, n, k), (m, k, n), (k, n, m)),
            (rounding, rounding_back / 2, rounding_back / 2),
            _separate_kernels(work, grouped),
            strict=True,
        )
    )
    return ProductTime(forward=forward, of_input=of_input, of_weight=of_weight)


def _separate_kernels(work: StepWorkload, grouped: ExpertProduct) -> tuple[Array, Array, Array]:
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


def _exchanges(work: StepWorkload) -> Array:
    """1 where ranks share experts."""
    return np.where(work.layout.expert > 1, 1.0, 0.0)
