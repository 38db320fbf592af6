"""Workloads of published measurements (a table in CSV): to fit constants to, and to see how far off estimates are."""

import csv
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.plan.device import Device, find_device
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.shapes import (
    KERNELS,
    AttentionShapes,
    ComparisonShapes,
    KernelShapes,
    ModelShapes,
    each_product,
)
from pretrain.plan.estimate.stages import StateByDepth
from pretrain.plan.estimate.step_settings import (
    GENERATIONS,
    RECOMPUTE,
    DeviceSpeeds,
    LayoutSizes,
    StageShapes,
    StepSettings,
)
from pretrain.plan.estimate.workload import LayerStack, StepWorkload
from pretrain.plan.memory import state_bytes

_DEVICES = {"a100-sxm-80": "a100-80", "a100-sxm-40": "a100-40", "h100-sxm-80": "h100", "h100-500w-96": "h100"}
# Of each gradient that a rank holds: half precision; or that, and sums of it in fp32, and copies to send.
_GRADIENT_BYTES = {
    "aleph-alpha": 2.0,
    "nemo-dgxc": 2.0,
    "nemo-24.07": 2.0,
    "megatron-deepspeed-bf16": 8.0,
    "nanotron": 6.0,
}
# Of each logit, at the peak. nanotron's loss makes a second copy in fp32, which becomes the gradient.
_LOGIT_BYTES = {"aleph-alpha": 16.0, "llm-foundry": 4.0, "nanotron": 8.0}
_PLAIN_GATES = ("nanotron", "torchtitan-eager")
"""Stacks that compute a gated feed-forward layer as activation and product, and keep what lies between."""
_UNFUSED_NORM_BYTES = 10.0
"""Bytes of each element that a norm in several operations keeps: input and quotient in fp32, and half of that."""


@dataclass(frozen=True, kw_only=True)
class PublishedSteps:
    """Measured steps, one entry for each line of the table."""

    workload: StepWorkload
    seconds: Array
    """seconds of a step; nan: did not fit in memory"""
    fits: NDArray[Any]
    held_bytes: Array
    """peak bytes of a rank; nan: not published"""
    memory_bytes: Array
    """bytes of memory of a device"""
    stack: NDArray[Any]
    model: NDArray[Any]
    source: NDArray[Any]
    names: NDArray[Any]

    def take(self, chosen: Any) -> Self:
        """Steps that an index or a mask chooses."""
        columns = {f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name != "workload"}
        return type(self)(workload=self.workload.take(chosen), **columns)


def load_steps(path: Path) -> PublishedSteps:
    """Reads a table of measurements. Raises ConfigError if a required column is missing."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    try:
        return _steps(lines)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{path} is no table of measurements that can be read: {error!r}") from None


def _steps(lines: list[dict[str, str]]) -> PublishedSteps:
    def number(key: str) -> Array:
        return np.array([float(line[key] or "nan") for line in lines])

    def text(key: str) -> NDArray[Any]:
        return np.array([line[key] for line in lines])

    def device_values(name: str) -> Array:
        return np.array([float(getattr(device, name)) for device in devices])

    count, stack, devices = len(lines), text("stack"), [published_device(line) for line in lines]
    hidden, heads, kv_heads, ffn = number("hidden"), number("heads"), number("kv_heads"), number("ffn")
    gated, vocabulary, length = number("gated"), number("vocab"), number("seq")
    stages, layers = _stages(number)
    every_product = each_product(layers)
    fused_norms = np.array([float(_fuses_norms(line)) for line in lines])
    logit_bytes = np.select([stack == name for name in _LOGIT_BYTES], list(_LOGIT_BYTES.values()), 12.0)
    states = np.array([_state(line) for line in lines])
    workload = StepWorkload(
        model=ModelShapes.repeat(
            count,
            hidden=hidden,
            gated=gated,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=hidden / heads,
            value_dim=hidden / heads,
            rotary_dim=gated * hidden / heads,
            embedding_dim=hidden,
            vocabulary=vocabulary,
            answers=0,
            label_length=length,
            rotary=gated,
            distance_rows=0,
            kept_distance_rows=0,
            distance_linears=0,
            distance_features=0,
            bias_copies=0,
            last_layer_uses=0,
            qk_norm=0,
            all_heads_norm=0,
            layer_norms=2,
            adapter_dim=0,
            trains_output=1,
            trains_transform=1,
            trains_embedding_projection=1,
            embedding_norm=0,
            final_norm=0,
            head_tensors=2,
            head_transform=0,
            embedding_projection=0,
            positions_beside_first=0,
            further=0,
            embedding_lookups=1,
            shared_layers=0,
            ties_output=0,
        ),
        stacks=(
            LayerStack(
                layers=layers,
                backward_layers=layers,
                input_gradients=every_product,
                weight_gradients=every_product,
                lora_ranks=np.zeros_like(every_product[:, :, 0]),
                ffn=ffn,
                length=length,
                keys=length / 2,
                computed_keys=length / 2,
                encoder_length=np.zeros(count),
                travels=np.ones(count),
                ends_in_norm=np.ones(count),
            ),
        ),
        stages=stages,
        layout=LayoutSizes.repeat(
            count,
            tensor=number("tp"),
            sequence=number("sp"),
            context=number("cp"),
            pipeline=number("pp"),
            virtual=number("vp"),
            data=number("dp"),
            expert=1,
            expert_tensor=number("tp"),
            zero=number("zero"),
            deepspeed=number("zero") > 1,
        ),
        step=StepSettings.repeat(
            count,
            sequences=number("gbs"),
            micro_sequences=number("mbs"),
            recompute=[RECOMPUTE.index(name) for name in text("recompute")],
            trains=1,
            activation_bytes=2,
            weight_bytes=states[:, 0],
            gradient_bytes=states[:, 1],
            main_bytes=states[:, 2],
            moment_bytes=0,
            keeps_scores=0,
            fp8=text("precision") == "fp8",
            exchanged_gradient_bytes=np.where(number("zero") > 1, 2.0, 4.0),
            sums_everywhere=0,
            weight_gathers=2,
            bucket_bytes=0,
            bucket_copy_bytes=0,
            table_copies=0,
            build_bytes=0,
        ),
        comparison=ComparisonShapes.repeat(count, layers=0, projects=0, scores=0),
        attention=AttentionShapes.repeat(
            count,
            key_copies=0,
            copies_grouped_keys=1,
            score_biases=0,
            shared_score_masks=0,
            masks_of_rows=0,
            score_bytes=0,
            live_score_bytes=0,
            cross_score_bytes=0,
            score_share=1,
            max_score_share=1,
            pair_bytes=0,
            score_gradient_bytes=0,
            freed_score_bytes=0,
        ),
        kernels=KernelShapes.repeat(
            count,
            attention=[_kernel(line) for line in lines],
            fused_norms=fused_norms,
            norm_bytes=np.where(fused_norms > 0, 0.0, _UNFUSED_NORM_BYTES),
            grouped_products=0,
            ffn_tensors=2 + gated * np.where(np.isin(stack, _PLAIN_GATES), 2, 1),
            fc2_input_tensors=1,
            live_ffn_tensors=0,
            keeps_products=[name.startswith("torchtitan") for name in stack],
            logit_bytes=logit_bytes,
            saved_logit_bytes=logit_bytes,
            chunk_logit_bytes=0,
            chunk_product_bytes=0,
            sampled_share=0,
            head_gradient_bytes=0,
            chunk_head_gradient_bytes=0,
            logits_sharded=stack != "aleph-alpha",
            logit_positions=np.inf,
            angle_bytes=4,
            dropout_bytes=0,
            ffn_dropout_bytes=0,
            lora_dropout_bytes=0,
            lora_split_dropout_bytes=0,
            lora_cross_dropout_bytes=0,
            rounding_bytes=0,
        ),
        device=DeviceSpeeds.repeat(
            count,
            generation=[GENERATIONS.index(device.generation) for device in devices],
            peak_flops=device_values("bf16_flops"),
            fp32_flops=device_values("fp32_flops"),
            block_peak_flops=device_values("bf16_flops"),
            memory_bytes_per_s=device_values("memory_bytes_per_s"),
            processors=device_values("processors"),
            link_bytes_per_s=device_values("link_bytes_per_s"),
            network_bytes_per_s=number("ib_GBps_per_gpu") * 1e9,
            per_node=device_values("devices"),
        ),
    )
    return PublishedSteps(
        workload=workload,
        seconds=number("step_s"),
        fits=text("outcome") == "ok",
        held_bytes=number("mem_GB") * 1e9,
        memory_bytes=device_values("memory_gib") * 2**30,
        stack=stack,
        model=text("model"),
        source=text("source"),
        names=text("id"),
    )


def _stages(number: Callable[[str], Array]) -> tuple[StageShapes, Array]:
    """First stage, those between and the last, and the layers on each, [n, 3]. Where layers don't divide, the ends,
    with embedding and loss, have fewer."""
    pipeline, layers, hidden = number("pp"), number("layers"), number("hidden")
    ones = np.ones_like(pipeline)
    several = (pipeline > 1).astype(float)
    count = np.stack([ones, np.maximum(pipeline - 2, 0), several], axis=1)
    between = np.ceil(layers / pipeline)
    ends = np.where(pipeline > 2, (layers - between * (pipeline - 2)) / 2, between)
    on_stage = np.stack([ends, between, ends], axis=1) * (count > 0)
    embeds = np.stack([ones, 0 * ones, 0 * ones], axis=1)
    predicts = np.stack([1 - several, 0 * ones, several], axis=1)
    gated, key_dim = number("gated"), number("kv_heads") * hidden / number("heads")
    matrices = 2 * hidden * (hidden + key_dim) + (2 + gated) * hidden * number("ffn")
    tied = number("tied") > 0
    tables = embeds + np.where((tied & (pipeline == 1))[:, None], 0.0, predicts)
    table = (number("vocab") * hidden)[:, None]
    of_experts = np.zeros((len(count), 2, count.shape[1]))
    shapes = StageShapes(
        count=count,
        sharded_parameters=on_stage * matrices[:, None] + tables * table,
        replicated_parameters=np.zeros_like(count),
        sharded_trained=on_stage * matrices[:, None] + tables * table,
        replicated_trained=np.zeros_like(count),
        expert_parameters=of_experts,
        expert_trained=of_experts,
        **{name: np.zeros_like(count) for name in StateByDepth.NAMES} | {"expert_moments": of_experts},
        embeds=embeds,
        trains_embedding=embeds,
        head_input=predicts,
        predicts=predicts,
        position=np.stack([0 * ones, ones, pipeline - 1], axis=1) * (count > 0),
        in_flight_share=np.ones_like(count),
        summed_parameters=(embeds + predicts) * table * (tied & (pipeline > 1))[:, None],
    )
    return shapes, on_stage


def _state(line: dict[str, str]) -> tuple[float, float, float]:
    """Bytes of weight, gradient and optimizer states for each parameter of a rank."""
    tensor, context, pipeline, data, zero = (int(line[key]) for key in ("tp", "cp", "pp", "dp", "zero"))
    engine: Literal["megatron", "deepspeed"] = "deepspeed" if zero > 1 else "megatron"
    layout = Layout(
        world=tensor * context * pipeline * data,
        tensor=tensor,
        pipeline=pipeline,
        zero=zero,
        zero_engine=engine,
        context=context,
    )
    state = state_bytes(1.0, layout, "bf16")
    return state.weights, _GRADIENT_BYTES.get(line["stack"], state.gradients), state.optimizer


def _fuses_norms(line: dict[str, str]) -> bool:
    """One of the stacks was measured with and without."""
    return line["stack"] != "aleph-alpha" or "RMS kernel" in line["note"]


def _kernel(line: dict[str, str]) -> int:
    """NVIDIA's stacks compute with cuDNN what others do with FlashAttention 2."""
    name = line["attention"]
    if name == "flash":
        name = "cudnn" if line["stack"].startswith(("nemo", "megatron")) else "flash2"
    return KERNELS.index(name)


def published_device(line: dict[str, str]) -> Device:
    """Device that a line names."""
    device = find_device(_DEVICES[line["hardware"]])
    if line["hardware"] == "h100-500w-96":  # with HBM2e
        return device.model_copy(update={"memory_gib": 96.0, "memory_bytes_per_s": 2.4e12})
    return device
