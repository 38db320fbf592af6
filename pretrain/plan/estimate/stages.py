"""Parameters, layers and gradients of a model by pipeline stage."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from pretrain.config.optimizer import MuonOptimizer, Optimizer
from pretrain.config.run_config import RunConfig
from pretrain.model_spec.blocks import newton_schulz_flops
from pretrain.model_spec.embeddings import WORD_EMBEDDINGS
from pretrain.model_spec.gradients import PRODUCTS, model_gradients
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.model_spec.split import chunk_layers
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.layer_stacks import alike_layers

Indices = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class StageGroups:
    """Stages of a pipeline, grouped by kind: [s]."""

    count: Array
    layers: Array
    """layers of each of `alike_layers`, [2, s]"""
    backward_layers: Array
    """layers among them with a backward pass, [2, s]"""
    input_gradients: Array
    """layers among them in which the input of each product has a gradient, [2, PRODUCTS, s]"""
    weight_gradients: Array
    """layers among them in which the weight of each product has a gradient, [2, PRODUCTS, s]"""
    sharded: Array
    """parameters that tensor ranks split"""
    replicated: Array
    """parameters that every tensor rank holds"""
    sharded_trained: Array
    """trained ones of `sharded`"""
    replicated_trained: Array
    """trained ones of `replicated`"""
    experts: Array
    """parameters among `sharded` and among `replicated` that expert ranks split, too, [2, s]"""
    experts_trained: Array
    """trained ones of `experts`"""
    expert_moments: Array
    """values that the optimizer keeps of `experts`"""
    sharded_moments: Array
    """values that the optimizer keeps of `sharded`"""
    replicated_moments: Array
    """values that the optimizer keeps of `replicated`"""
    sharded_blocks: Array
    """parameters among `sharded_trained` that Muon orthogonalizes; 0 with other optimizers"""
    expert_blocks: Array
    """parameters among `sharded_blocks` that are of `experts`"""
    replicated_blocks: Array
    """parameters among `replicated_trained` that Muon orthogonalizes; 0 with other optimizers"""
    block_flops: Array
    """operations of Muon's Newton-Schulz steps for all blocks of the stage"""
    embeds: Array
    trains_embedding: Array
    predicts: Array
    head_input: Array
    position: Array
    """index of the stage, from 0"""
    in_flight_share: Array
    """`StageShapes.in_flight_share`"""
    summed: Array
    """`StageShapes.summed_parameters`"""


def _is_sharded(spec: ParameterSpec) -> bool:
    """Whether tensor ranks split it, or those that share an expert's features do."""
    return "tensor" in spec.axes or "expert_tensor" in spec.axes


class StateByDepth:
    """State that the optimizer keeps of a model's parameters, and its computation with them, by depth."""

    NAMES = (
        *("sharded_moments", "replicated_moments", "expert_moments"),
        *("sharded_blocks", "replicated_blocks", "expert_blocks", "block_flops"),
    )
    """fields of `StageGroups`"""

    def __init__(self, optimizer: Optimizer, depths: int) -> None:
        self._optimizer = optimizer
        self.values = {
            name: np.zeros((2, depths) if name == "expert_moments" else depths) for name in self.NAMES
        }  # fmt: skip

    def copy(self) -> "StateByDepth":
        other = StateByDepth(self._optimizer, 0)
        other.values = {name: values.copy() for name, values in self.values.items()}
        return other

    def add(self, spec: ParameterSpec, depths: Sequence[int]) -> None:
        """Adds a trained parameter at each of `depths`."""
        kind = "sharded" if _is_sharded(spec) else "replicated"
        at = list(depths)
        moments = spec.size * self._optimizer.moments_of(spec.blocks is not None)
        self.values[f"{kind}_moments"][at] += moments
        self.values["expert_moments"][int(kind == "replicated"), at] += moments * ("expert" in spec.axes)
        if isinstance(self._optimizer, MuonOptimizer) and spec.blocks is not None:
            self.values[f"{kind}_blocks"][at] += spec.size
            self.values["expert_blocks"][at] += spec.size * ("expert" in spec.axes and kind == "sharded")
            blocks = spec.blocks.rows_of(prod(spec.shape[:-1]), self._optimizer.per_head).values()
            steps = len(self._optimizer.steps)
            self.values["block_flops"][at] += sum(newton_schulz_flops(len(r), spec.shape[-1], steps) for r in blocks)


class ParametersByDepth:
    """Parameters of a model by depth, summed once."""

    _SUMMED = ("sharded", "replicated", "sharded_trained", "replicated_trained", "experts", "experts_trained")
    """fields of `StageGroups`, and attributes"""

    def __init__(self, config: RunConfig, left_out: Container[str] = (), frozen: bool = False) -> None:
        """`left_out`: names of parameters that another model has, too. `frozen`: whether none is trained."""
        self.model = config.model
        depths = sum(self.model.stacks) + 2
        self.sharded, self.replicated, self.sharded_trained, self.replicated_trained = np.zeros((4, depths))
        self.experts, self.experts_trained = np.zeros((2, 2, depths))
        self.state = StateByDepth(config.optimizer, depths)
        self.copies: dict[str, tuple[ParameterSpec, set[int]]] = {}
        """shared parameters by name: the parameter, and the depths of its uses after the first"""
        specs = parameter_specs(self.model)
        if frozen:
            specs = [replace(spec, trained=False) for spec in specs]
        by_name = {spec.name: spec for spec in specs}
        self.trains_embedding = by_name[WORD_EMBEDDINGS].trained
        self.first_trained = min((spec.depth for spec in specs if spec.trained), default=depths)
        self.gradients = model_gradients(self.model, specs)
        layers = self.gradients.layers
        self._inputs, self._weights = (
            np.array([[product in products for products in of_layers] for product in PRODUCTS], dtype=float)
            for of_layers in ([layer.inputs for layer in layers], [layer.weights for layer in layers])
        )
        """1 for each product and layer that has a gradient of its input on one stage, and of its weight"""
        # megatron-core's linear layers compute the former with the latter, whether or not anything reads it.
        self._inputs = np.maximum(self._inputs, self._weights)
        for spec in specs:
            if spec.alias_of is not None:
                self.copies.setdefault(spec.alias_of, (by_name[spec.alias_of], set()))[1].add(spec.depth)
            elif spec.name not in left_out:
                is_sharded = _is_sharded(spec)
                (self.sharded if is_sharded else self.replicated)[spec.depth] += spec.size
                of_experts = spec.size * ("expert" in spec.axes)
                self.experts[int(not is_sharded), spec.depth] += of_experts
                if spec.trained:
                    self.experts_trained[int(not is_sharded), spec.depth] += of_experts
                    self.state.add(spec, [spec.depth])
                    (self.sharded_trained if is_sharded else self.replicated_trained)[spec.depth] += spec.size

    def stages(self, pipeline: int, virtual: int) -> StageGroups:
        """Stages of a legal pipeline."""
        counts = chunk_layers(self.model, pipeline, virtual)
        ends = np.cumsum(counts)
        of_chunk = np.searchsorted(ends, np.arange(1, ends[-1] + 1))  # chunk of each layer
        first, last = np.eye(pipeline)[[0, -1]]
        in_flight = np.ones(pipeline)
        if not self.model.is_encoder_decoder:  # whose chunks have layers of two kinds
            in_flight = in_flight_share(np.reshape(counts, (virtual, pipeline)))
        groups = {
            "count": np.ones(pipeline),
            **self._layer_sums(of_chunk, pipeline),
            **self._parameter_sums(of_chunk % pipeline, pipeline),
            "embeds": first,
            "trains_embedding": first * (self.first_trained == 0),
            "predicts": last,
            "head_input": last * (self._is_trained if of_chunk[-1] else self.gradients.head_input),
            "position": np.arange(pipeline, dtype=np.float64),
            "in_flight_share": in_flight,
        }
        differ = all(alike_layers(self.model)) or (self._weights != self._weights[:, :1]).any()
        differ = differ or len(set(counts)) > 1
        if differ or pipeline <= 3:
            return StageGroups(**groups)
        first_middle_last = [0, 1, pipeline - 1]  # stages between the ends are alike
        groups = {name: values[..., first_middle_last] for name, values in groups.items()}
        return StageGroups(**groups | {"count": np.array([1.0, pipeline - 2.0, 1.0])})

    @property
    def _is_trained(self) -> bool:
        """Whether any parameter is."""
        return self.first_trained < len(self.sharded)

    def _layer_sums(self, of_chunk: Indices, pipeline: int) -> dict[str, Array]:
        """Layers by stage, and those with each kind of gradient. `of_chunk` [layers]: chunk of each layer."""
        # What another chunk sent has a gradient, whether or not a parameter needs it.
        sends_back = (of_chunk > 0) & self._is_trained
        backward = (np.arange(1, len(of_chunk) + 1) >= self.first_trained) | sends_back
        first_stack = len(alike_layers(self.model)[0])
        on_stage = np.eye(pipeline)[of_chunk % pipeline]

        def by_stage(of_layers: Array) -> Array:
            """Sums over layers, [..., layers], of each part of them and stage: [2, ..., s]."""
            parts = slice(None, first_stack), slice(first_stack, None)
            return np.stack([of_layers[..., part] @ on_stage[part] for part in parts])

        return {
            "layers": by_stage(np.ones(len(of_chunk))),
            "backward_layers": by_stage(backward.astype(float)),
            "input_gradients": by_stage(np.maximum(self._inputs, sends_back)),
            "weight_gradients": by_stage(self._weights),
        }

    def _parameter_sums(self, of_stage: Indices, pipeline: int) -> dict[str, Array]:
        """Parameters by stage, and what is kept and computed of them. `of_stage` [layers]: stage of each layer."""
        of_depth = np.concatenate([[0], of_stage, [pipeline - 1]])
        at_depth = np.eye(pipeline)[of_depth]
        sums = {name: getattr(self, name) @ at_depth for name in self._SUMMED}
        summed = np.zeros(pipeline)
        state = self.state.copy()
        for original, depths in self.copies.values():
            first = of_depth[original.depth]
            elsewhere = np.unique(of_depth[list(depths)])
            elsewhere = elsewhere[elsewhere != first]
            kind = "sharded" if _is_sharded(original) else "replicated"
            sums[kind][elsewhere] += original.size
            if not original.trained:
                continue
            sums[f"{kind}_trained"][elsewhere] += original.size
            state.add(original, [int(np.flatnonzero(of_depth == stage)[0]) for stage in elsewhere])
            holders = 1 + len(elsewhere)
            summed[[first, *elsewhere]] += original.size * 2 * (holders - 1) / holders
        return {**sums, "summed": summed, **{name: values @ at_depth for name, values in state.values.items()}}


def in_flight_share(counts: Array) -> Array:
    """`StageShapes.in_flight_share` of stages whose chunks have `counts` [virtual, stages] layers. Micro-batches pass
    in groups of as many as there are stages, first through the first chunk; gradients come in the opposite order."""
    virtual, pipeline = counts.shape
    found = np.ones(pipeline)
    for stage in np.flatnonzero(np.ptp(counts, axis=0)):
        forward, backward = (np.tile(np.repeat(of, pipeline), 4) for of in (counts[:, stage], counts[::-1, stage]))
        chunks = 2 * (pipeline - 1 - stage) + (virtual - 1) * pipeline + 1  # as `StepWorkload.in_flight` has them
        ended = np.concatenate([[0], np.cumsum(backward)])[: len(forward) - chunks + 1]
        most = (np.cumsum(forward)[chunks - 1 :] - ended).max()
        found[stage] = most / (chunks * counts[:, stage].mean())
    return found
