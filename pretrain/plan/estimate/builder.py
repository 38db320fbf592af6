"""Builds the workload of a run's config on any number of layouts: the one place that does."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pretrain.config.optimizer import MuonOptimizer
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.model_spec.generator import added_tables, shared_tables
from pretrain.model_spec.parameters import bucket_parameters
from pretrain.plan.device import Device
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.layer_stacks import layer_stacks, layers_behind, models_in_front
from pretrain.plan.estimate.model_shapes import (
    attention_shapes,
    comparison_shapes,
    kernel_shapes,
    model_shapes,
)
from pretrain.plan.estimate.stages import ParametersByDepth, StageGroups, StateByDepth
from pretrain.plan.estimate.step_settings import (
    GENERATIONS,
    RECOMPUTE,
    DeviceSpeeds,
    LayoutSizes,
    StageShapes,
    StepSettings,
)
from pretrain.plan.estimate.workload import StepWorkload
from pretrain.plan.memory import build_bytes, state_bytes
from pretrain.plan.planned import check_planned

_PART = 20_000
"""choices whose workload is built at a time"""
_FILLED = 2 / 3
"""Share of a bucket that is filled when the next gradient no longer fits into it. Counted by a rehearsal of GPT-3 13B:
0.67 where most activations are held, 0.74 on average."""


@dataclass(frozen=True)
class LayoutChoice:
    """A layout, and the other settings that decide the speed and the memory of a step."""

    layout: Layout
    micro_sequences: int
    recompute: str


class WorkloadBuilder:
    """Builds the workload of one config on one kind of device for any choices of layouts."""

    def __init__(
        self, config: RunConfig, device: Device, per_node: int, left_out: Container[str] = (), frozen: bool = False
    ) -> None:
        """`per_node`: number of devices of a node. `left_out` and `frozen`: see `ParametersByDepth`. Raises ConfigError
        for models that are not planned."""
        check_planned(config)
        self._as_built, self.device, self.per_node = config, device, per_node
        self._left_out, self._frozen = left_out, frozen
        self.config = config.model_copy(update={"model": config.row_model})
        self._stages: dict[tuple[int, int], StageGroups] = {}
        self._buckets: dict[int, int] = {}

    @cached_property
    def _parameters(self) -> ParametersByDepth:
        return ParametersByDepth(self._as_built, self._left_out, self._frozen)

    @cached_property
    def _second(self) -> "WorkloadBuilder | None":
        """The builder of the run's other model."""
        config = self._as_built
        if config.generator is not None:
            return WorkloadBuilder(
                config.generator_config(), self.device, self.per_node, left_out=shared_tables(config)
            )
        if config.distillation.model is not None:
            return WorkloadBuilder(config.teacher_config(), self.device, self.per_node, frozen=True)
        return None

    def build(self, choices: Sequence[LayoutChoice]) -> StepWorkload:
        """One entry for each choice. Raises ConfigError if the device has no such precision."""
        work, second = self._model_workload(choices), self._second
        if second is None:
            return work
        other, settings = second.build(choices), self._as_built.distillation
        if settings.model is not None and not settings.kl_weight:
            other = replace(other, model=replace(other.model, vocabulary=np.zeros_like(other.model.vocabulary)))
        return replace(work, others=(other,))

    def build_in_parts(self, choices: Sequence[LayoutChoice]) -> Iterator[tuple[NDArray[np.intp], StepWorkload]]:
        """The workloads of some of the choices at a time, with their indices: of one number of stages each, as arrays
        are as wide as the pipeline with the most kinds of stages, and of as many as bound the memory."""
        pipelines = np.array([choice.layout.pipeline for choice in choices])
        for pipeline in np.unique(pipelines):
            alike = np.flatnonzero(pipelines == pipeline)
            for indices in np.array_split(alike, -(-len(alike) // _PART)):
                yield indices, self.build([choices[index] for index in indices])

    def _model_workload(self, choices: Sequence[LayoutChoice]) -> StepWorkload:
        if self._frozen:  # every data rank holds it in full
            full = {id(choice.layout): replace(choice.layout, zero=0) for choice in choices}
            choices = [replace(choice, layout=full[id(choice.layout)], recompute="none") for choice in choices]
        model, count = self.config.model, len(choices)
        width, on_cpu = 4.0 if self.config.precision == "fp32" else 2.0, self.device.generation == "cpu"
        device = self._device(count)
        # Many choices share a layout.
        distinct = {id(choice.layout): choice.layout for choice in choices}
        row_of = {key: row for row, key in enumerate(distinct)}
        rows = np.array([row_of[id(choice.layout)] for choice in choices])
        layouts = list(distinct.values())
        sizes = _layout_sizes(layouts)
        stages, layers = self._stage_shapes(layouts)
        shapes = model_shapes(model, count, 2 if added_tables(self.config) else 1)
        if self._frozen:  # as its config does not say
            untrained = ("trains_output", "trains_transform", "trains_embedding_projection")
            shapes = replace(shapes, **dict.fromkeys(untrained, np.zeros(count)))
        return StepWorkload(
            model=shapes,
            stacks=layer_stacks(
                model,
                {name: values[rows] for name, values in layers.items()},
                stages.embeds[rows],
                stages.predicts[rows],
            ),
            stages=stages.take(rows),
            layout=sizes.take(rows),
            step=self._step_settings(choices, layouts, rows, width),
            attention=attention_shapes(self.config, count, width, on_cpu),
            comparison=comparison_shapes(self.config, count),
            kernels=kernel_shapes(self.config, sizes.tensor, width, on_cpu).take(rows),
            device=device,
        )

    def stages(self, pipeline: int, virtual: int) -> StageGroups:
        """Stages of a legal pipeline, computed once."""
        key = pipeline, virtual
        if key not in self._stages:
            self._stages[key] = self._parameters.stages(pipeline, virtual)
        return self._stages[key]

    def _stage_shapes(self, layouts: Sequence[Layout]) -> tuple[StageShapes, dict[str, Array]]:
        """Stages of each layout, [n, s], and the layers on them by their field of `StageGroups`, [n, 2, ..., s].
        Layouts with fewer stages than others end in empty ones."""
        groups = [self.stages(layout.pipeline, layout.virtual) for layout in layouts]
        width = max(len(group.count) for group in groups)

        def padded(name: str) -> Array:
            values = [getattr(group, name) for group in groups]
            out = np.zeros((len(groups), *values[0].shape[:-1], width))
            for entry, of_group in zip(out, values, strict=True):
                entry[..., : of_group.shape[-1]] = of_group
            return out

        shapes = StageShapes(
            count=padded("count"),
            sharded_parameters=padded("sharded"),
            replicated_parameters=padded("replicated"),
            sharded_trained=padded("sharded_trained"),
            replicated_trained=padded("replicated_trained"),
            expert_parameters=padded("experts"),
            expert_trained=padded("experts_trained"),
            **{name: padded(name) for name in StateByDepth.NAMES},
            embeds=padded("embeds"),
            trains_embedding=padded("trains_embedding"),
            predicts=padded("predicts"),
            head_input=padded("head_input"),
            position=padded("position"),
            in_flight_share=padded("in_flight_share"),
            summed_parameters=padded("summed"),
        )
        names = ("layers", "backward_layers", "input_gradients", "weight_gradients")
        return shapes, {name: padded(name) for name in names}

    def _step_settings(
        self, choices: Sequence[LayoutChoice], layouts: Sequence[Layout], rows: np.ndarray, width: float
    ) -> StepSettings:
        """Batch, recomputation and precision of each choice, whose layout is `layouts[rows[i]]`."""
        config, parallel = self.config, self.config.parallel
        states = [state_bytes(1.0, layout, config.precision, 0) for layout in layouts]
        of_moments = [state_bytes(1.0, layout, config.precision, 1).optimizer for layout in layouts]
        weights_offloaded = np.array([parallel.offload_parameters and layout.zero == 3 for layout in layouts])
        optimizer_offloaded = np.array(
            [parallel.offload_optimizer and layout.shards_by_deepspeed for layout in layouts]
        )
        weights, mains = (np.array([getattr(state, name) for state in states]) for name in ("weights", "optimizer"))
        kept = np.array([optimizer_offloaded, optimizer_offloaded])
        mains, moments = np.where(kept, 0.0, [mains, np.array(of_moments) - mains])
        buckets, copies, table_copies = np.array([self._deepspeed_bytes(layout, width) for layout in layouts]).T
        return StepSettings.repeat(
            len(choices),
            sequences=config.batch.sequences,
            micro_sequences=[choice.micro_sequences for choice in choices],
            recompute=[RECOMPUTE.index(choice.recompute) for choice in choices],
            trains=not self._frozen,
            activation_bytes=width,
            weight_bytes=np.where(weights_offloaded, 0.0, weights)[rows],
            gradient_bytes=np.array([state.gradients for state in states])[rows],
            main_bytes=mains[rows],
            moment_bytes=moments[rows],
            keeps_scores=self._keeps_scores(),
            fp8=config.precision == "fp8",
            # Gradients are exchanged in fp32, also by DeepSpeed (`engine/zero/deepspeed.py`), whose stages 1 and 2
            # all-reduce complete buckets. In a pipeline, whose order of modules varies, its stage 3 gathers weights
            # again for layers that are recomputed; otherwise it knows that the backward pass is next to need them.
            exchanged_gradient_bytes=4.0,
            sums_everywhere=np.array([layout.shards_by_deepspeed for layout in layouts])[rows],
            weight_gathers=[2 + (choice.recompute == "full" and choice.layout.pipeline > 1) for choice in choices],
            bucket_bytes=buckets[rows],
            bucket_copy_bytes=copies[rows],
            table_copies=table_copies[rows],
            build_bytes=np.array([build_bytes(layout, config.precision) for layout in layouts])[rows],
        )

    def _deepspeed_bytes(self, layout: Layout, width: float) -> tuple[float, float, float]:
        """`StepSettings.bucket_bytes`, `bucket_copy_bytes` and `table_copies`, as DeepSpeed and `engine/zero` make
        them. `width`: bytes of a weight."""
        table = self._table_bytes(layout, width)
        if not layout.shards_by_deepspeed or layout.zero == 1:  # stage 1 exchanges when activations are free again
            return 0.0, 0.0, table
        size = self._bucket(layout.tensor)
        if layout.zero == 2:  # buckets are as wide as weights, and freed after each backward pass
            copies = _FILLED * (width + (4 if width < 4 else 0))
            return 0.0, ((1 + self._overlaps(layout)) * width + copies) * size, table
        return 4.0 * size, _FILLED * 4 * size, width + table  # it is gathered

    def _bucket(self, tensor: int) -> int:
        """Parameters of a bucket of DeepSpeed on one of `tensor` ranks, computed once."""
        if tensor not in self._buckets:
            self._buckets[tensor] = bucket_parameters(self.config, tensor)
        return self._buckets[tensor]

    def _table_bytes(self, layout: Layout, width: float) -> float:
        """Bytes, for each value of the embedding of the vocabulary, of its gradient: in fp32 and as wide as weights,
        and of what its other uses have added up. Of two lookups in fp32, the new sum is there too. The table of a model
        in front has a turn of its own."""
        model, of_one = self.config.model, 4 + (width if width < 4 else 0)
        in_front, of_front = models_in_front(model), 0.0
        if in_front and not self._frozen:
            of_front = of_one * max(one.padded_vocab_size for one in in_front) / model.padded_vocab_size
        if not self._parameters.trains_embedding:
            return of_front
        two_lookups = bool(layers_behind(model)) or (model.is_encoder_decoder and not in_front)
        others = two_lookups or (layout.pipeline == 1 and model.ties_output)
        return max(of_front, of_one + width * others + (4 if width == 4 and two_lookups else 0))

    def _overlaps(self, layout: Layout) -> bool:
        """Whether gradients are exchanged during the backward pass, as `engine/zero/base.py` decides."""
        chosen = self.config.parallel.overlap
        return chosen if chosen is not None else self.device.generation != "cpu" and layout.pipeline == 1

    def _keeps_scores(self) -> bool:
        optimizer = self.config.optimizer
        return isinstance(optimizer, MuonOptimizer) and optimizer.qk_clip_threshold is not None and not self._frozen

    def _block_peak(self) -> float:
        optimizer = self.config.optimizer
        precision = optimizer.ns_precision if isinstance(optimizer, MuonOptimizer) else "fp32"
        if precision == "bf16x3":
            return (self.device.peak("bf16") or self.device.peak("fp32") or 1.0) / 3
        return self.device.peak(precision) or self.device.peak("fp32") or 1.0

    def _device(self, count: int) -> DeviceSpeeds:
        device, precision = self.device, self.config.precision
        in_fp8 = precision == "fp8"
        peak = device.peak("bf16" if in_fp8 else precision)
        if peak is None or (in_fp8 and device.fp8_flops is None):
            supported = "bf16" if in_fp8 and peak else "fp16"
            raise ConfigError(
                f"hardware of generation {device.generation} does not support precision={precision}: use {supported}"
            )
        return DeviceSpeeds.repeat(
            count,
            generation=GENERATIONS.index(device.generation),
            peak_flops=peak,
            fp32_flops=device.fp32_flops,
            block_peak_flops=self._block_peak(),
            memory_bytes_per_s=device.memory_bytes_per_s,
            processors=device.processors,
            link_bytes_per_s=device.link_bytes_per_s,
            network_bytes_per_s=device.network_bytes_per_s,
            per_node=self.per_node,
        )


def _layout_sizes(layouts: Sequence[Layout]) -> LayoutSizes:
    axes = ("tensor", "sequence", "context", "pipeline", "virtual", "data", "expert", "expert_tensor", "zero")
    sizes = {name: [float(getattr(layout, name)) for layout in layouts] for name in axes}
    return LayoutSizes.repeat(len(layouts), **sizes, deepspeed=[layout.shards_by_deepspeed for layout in layouts])
