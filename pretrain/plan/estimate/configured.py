"""Turns a run's config on any number of layouts into `Work`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.model_spec.logits import positions_at_once
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.model_spec.split import chunk_layers
from pretrain.plan.device import Device
from pretrain.plan.estimate.attention_kept import attention_kept
from pretrain.plan.estimate.work import GENERATIONS, KERNELS, Array, Stack, Work
from pretrain.plan.memory import state_bytes

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Choice:
    """Layout, and the other settings that decide the speed and the memory of a step."""

    layout: Layout
    micro: int
    recompute: str


@dataclass(frozen=True)
class Stages:
    """Stages of a pipeline, grouped by kind: [s]."""

    count: Array
    layers: Array
    """layers of the encoder and of the decoder, [2, s]"""
    shared: Array
    """parameters that are split over tensor ranks"""
    whole: Array
    """parameters that every tensor rank holds in full"""
    embeds: Array
    predicts: Array
    position: Array
    """index of the stage, from 0"""


class Sizes:
    """Parameters of a model by depth, summed once."""

    def __init__(self, config: RunConfig) -> None:
        self.model = config.model
        depths = sum(self.model.stacks) + 2
        self.shared, self.whole = np.zeros(depths), np.zeros(depths)
        self.copies: dict[str, tuple[ParameterSpec, set[int]]] = {}
        """shared parameters by name: the parameter, and the depths of its uses after the first"""
        declarations = parameter_specs(self.model)
        by_name = {d.name: d for d in declarations}
        for d in declarations:
            if d.alias_of is not None:
                self.copies.setdefault(d.alias_of, (by_name[d.alias_of], set()))[1].add(d.depth)
            else:
                (self.shared if any(d.axes) else self.whole)[d.depth] += d.size

    def stages(self, pipeline: int, virtual: int) -> Stages:
        """Stages of a legal pipeline."""
        ends = np.cumsum(chunk_layers(self.model, pipeline * virtual))
        of_stage = np.searchsorted(ends, np.arange(1, ends[-1] + 1)) % pipeline  # stage of each layer
        first = np.concatenate([[0], of_stage, [pipeline - 1]])
        shared, whole = (np.bincount(first, values, pipeline).astype(float) for values in (self.shared, self.whole))
        for original, depths in self.copies.values():
            elsewhere = np.unique(first[list(depths)])
            elsewhere = elsewhere[elsewhere != first[original.depth]]
            (shared if any(original.axes) else whole)[elsewhere] += original.size
        encoder = self.model.stacks[0]
        layers = np.stack([np.bincount(part, minlength=pipeline) for part in (of_stage[:encoder], of_stage[encoder:])])
        embeds, predicts = np.eye(pipeline)[0], np.eye(pipeline)[-1]
        found = Stages(
            np.ones(pipeline),
            layers.astype(float),
            shared,
            whole,
            embeds,
            predicts,
            np.arange(pipeline, dtype=np.float64),
        )
        if self.model.is_encoder_decoder or pipeline <= 3:
            return found
        kept = [0, 1, pipeline - 1]  # those between the ends are alike
        count = np.array([1.0, pipeline - 2.0, 1.0])
        return Stages(count, *(getattr(found, n)[..., kept] for n in list(vars(found))[1:]))


class Configured:
    """Turns choices into `Work`."""

    def __init__(self, config: RunConfig, device: Device, devices: int) -> None:
        """`devices`: number of devices of a node."""
        self.config, self.device, self.devices = config, device, devices
        self._stages: dict[tuple[int, int], Stages] = {}

    @cached_property
    def _sizes(self) -> Sizes:
        return Sizes(self.config)

    def stages(self, pipeline: int, virtual: int) -> Stages:
        key = pipeline, virtual
        if key not in self._stages:
            self._stages[key] = self._sizes.stages(pipeline, virtual)
        return self._stages[key]

    def work(self, choices: Sequence[Choice]) -> Work:
        """One entry for each choice."""
        config, n = self.config, len(choices)
        # Choices that differ in nothing but ZeRO, recomputation and micro-batch share what they are made of.
        laid = {id(choice.layout): choice.layout for choice in choices}
        bases = {key: replace(layout, zero=0, zero_engine="megatron") for key, layout in laid.items()}
        places = {layout: place for place, layout in enumerate(dict.fromkeys(bases.values()))}
        place_of = {key: places[layout] for key, layout in bases.items()}
        base = self._base(list(places)).take(np.array([place_of[id(choice.layout)] for choice in choices]))

        moments = config.optimizer.num_moments
        of_layout = {key: state_bytes(1.0, layout, config.precision, moments) for key, layout in laid.items()}
        states = [of_layout[id(choice.layout)] for choice in choices]
        zero = np.array([float(choice.layout.zero) for choice in choices])
        deepspeed = np.array([float(choice.layout.shards_by_deepspeed) for choice in choices])
        micro = np.array([float(choice.micro) for choice in choices])
        optimizer = np.array([state.optimizer for state in states])
        return replace(
            base,
            micro=micro,
            score_biases=base.score_biases / (micro if config.model.positions.name == "alibi" else 1.0),
            zero=zero,
            deepspeed=deepspeed,
            recompute=np.array([float(RECOMPUTE.index(choice.recompute)) for choice in choices]),
            weight_bytes=np.where(
                config.parallel.offload_parameters & (zero == 3), 0.0, [state.weights for state in states]
            ),
            gradient_state_bytes=np.array([state.gradients for state in states]),
            optimizer_bytes=np.where(config.parallel.offload_optimizer & (deepspeed > 0), 0.0, optimizer),
            gradient_bytes=np.where(deepspeed > 0, base.width, np.full(n, 4.0)),
            in_flight=in_flight(base.pipeline, base.virtual, base.sequences / (base.data * micro), base.in_flight),
        )

    def _base(self, layouts: Sequence[Layout]) -> Work:
        """One entry for each layout, with one sequence in a micro-batch and without ZeRO; in place of micro-batches in
        flight the place of each stage."""
        config, model, device, n = self.config, self.config.model, self.device, len(layouts)
        stages = [self.stages(layout.pipeline, layout.virtual) for layout in layouts]
        width = max(len(one.count) for one in stages)

        def same(value: float) -> Array:
            return np.full(n, float(value))

        def of(name: str) -> Array:
            return np.array([float(getattr(layout, name)) for layout in layouts])

        def padded(name: str, row: int | None = None) -> Array:
            out = np.zeros((n, width))
            for i, one in enumerate(stages):
                values = getattr(one, name) if row is None else getattr(one, name)[row]
                out[i, : len(values)] = values
            return out

        tensor = of("tensor")
        bytes_of = 4.0 if config.precision == "fp32" else 2.0
        compiled = config.run.kernels == "compiled"
        mask_bytes = 0.0 if compiled else 1.0  # drawn anew for the backward pass
        kept = attention_kept(model, bytes_of, mask_bytes, device.generation == "cpu")
        in_fp8 = config.precision == "fp8"
        peak = device.peak("bf16" if in_fp8 else config.precision)
        if peak is None or (in_fp8 and device.fp8_flops is None):
            instead = "bf16" if in_fp8 and peak else "fp16"
            raise ConfigError(
                f"precision={config.precision} is not in this hardware ({device.generation}): use {instead}"
            )
        return Work(
            hidden=same(model.hidden),
            ffn=same(model.ffn_dim),
            gated=same(model.gated),
            heads=same(model.heads),
            kv_heads=same(model.num_kv_heads),
            head_dim=same(model.dim_per_head),
            embedding_dim=same(model.embedding_dim),
            vocabulary=same(model.padded_vocab_size),
            labels=same(model.label_length),
            stacks=tuple(
                Stack(padded("layers", row), same(length), same(keys), same(memory))
                for row, length, keys, memory in self._stacks()
            ),
            stages=padded("count"),
            parameters=padded("shared") / tensor[:, None] + padded("whole"),
            embeds=padded("embeds"),
            predicts=padded("predicts"),
            in_flight=padded("position"),
            sequences=same(config.batch.sequences),
            micro=same(1),
            tensor=tensor,
            sequence=of("sequence"),
            pipeline=of("pipeline"),
            virtual=of("virtual"),
            context=of("context"),
            data=of("data"),
            zero=same(0),
            deepspeed=same(0),
            recompute=same(0),
            products_kept=same(0),
            width=same(bytes_of),
            weight_bytes=same(0),
            gradient_state_bytes=same(0),
            optimizer_bytes=same(0),
            inner_widths=same(_inner_widths(model, bytes_of, compiled)),
            logit_bytes=same((4 if bytes_of == 4 else 8) + (bytes_of if model.final_logit_softcap is not None else 0)),
            logit_ranks=tensor,
            logit_positions=np.array([self._logit_positions(layout.tensor) for layout in layouts]),
            rotary=same(model.positions.name == "rotary"),
            angle_bytes=same(0 if compiled else 4),
            **{name: same(value) for name, value in vars(kept).items()},
            shaw_rows=same(model.shaw_rows),
            head_norms=same(model.qk_norm),
            norms=same(4 if model.norm == "sandwich" else 2),
            norm_bytes=same(0 if compiled else self._norm_bytes(bytes_of)),
            embedding_norms=same(model.embedding_norm),
            final_norms=same(model.norm_first),
            head_tensors=same(4 if model.capabilities.masked_head else 2),
            dropout=same((model.dropout > 0) * mask_bytes),
            ffn_dropout=same((model.ffn_dropout > 0) * mask_bytes),
            gradient_bytes=same(4),
            fp8=same(in_fp8),
            # The largest is looked for; then scaled and rounded, by one kernel or by two.
            rounding_bytes=same(5 if compiled else 9),
            kernel=np.full(n, KERNELS.index("flash2")),
            fused_norms=same(1),
            generation=np.full(n, GENERATIONS.index(device.generation)),
            peak_flops=same(peak),
            memory_bytes_per_s=same(device.memory_bytes_per_s),
            processors=same(device.processors),
            link_bytes_per_s=same(device.link_bytes_per_s),
            network_bytes_per_s=same(device.network_bytes_per_s),
            node=same(self.devices),
        )

    def _stacks(self) -> list[tuple[int, int, float, int]]:
        """(which, positions, keys that a query sees, positions of the encoder that it reads) of each stack there is."""
        model, found = self.config.model, []
        reads = model.sequence_length if model.is_encoder_decoder else 0
        for which, layers in enumerate(model.stacks):
            if layers:
                length = model.label_length if which else model.sequence_length
                keys = [model.attention.of_layer(layer).mean_keys(length, bool(which)) for layer in range(layers)]
                found.append((which, length, float(np.mean(keys)), reads if which else 0))
        return found

    def _logit_positions(self, tensor: int) -> float:
        return (
            inf if self.config.precision == "fp16" else positions_at_once(self.config.model.padded_vocab_size // tensor)
        )

    def _norm_bytes(self, width: float) -> float:
        """See `Work.norm_bytes`. torch has no kernel for RMS norms on a CPU; those of Gemma are computed in fp32."""
        kind = self.config.model.norm_type
        in_fp32 = 4.0 if kind == "rms_zero_centered" and width < 4 else 0.0
        written_out = self.device.generation == "cpu" and kind != "layer"
        return in_fp32 + (written_out * 4.0 if in_fp32 else written_out * width)


def _inner_widths(model: Model, width: float, compiled: bool) -> float:
    """Number of tensors of the feed-forward width that are kept for the backward pass. A gated layer keeps the gate,
    its activation, the value and their product; compiled, it recomputes the activation, and ReLU keeps a byte of each
    input. `width`: bytes of an activation."""
    if model.gated:
        return 3 if compiled else 4
    if model.activation != "relu":
        return 2
    return 1 + 1 / width if compiled else 1 + (model.ffn_dropout > 0)


def in_flight(pipeline: Array, virtual: Array, micro_batches: Array, position: Array) -> Array:
    """[n, s] micro-batches of one chunk whose activations a stage at `position` holds at most: those forwarded before
    the first backward pass, and one more (Narayanan et al. 2021, section 2.2; interleaved as megatron-core does)."""
    after = pipeline[:, None] - 1 - position
    plain = after + 1
    interleaved = 2 * after + (virtual[:, None] - 1) * pipeline[:, None] + 1
    every = micro_batches[:, None] * virtual[:, None]
    found: Array = np.minimum(np.where(virtual[:, None] > 1, interleaved, plain), every)
    return found
