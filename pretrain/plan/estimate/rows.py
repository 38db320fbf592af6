"""Published measurements (a table in CSV) as `Work`: to fit constants to, and to see how far off estimates are."""

import csv
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.plan.device import Device, find_device
from pretrain.plan.estimate.configured import RECOMPUTE, in_flight
from pretrain.plan.estimate.work import GENERATIONS, KERNELS, Array, Stack, Work
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
_UNFUSED = 10.0
"""Bytes of each element that a norm in several operations keeps: input and quotient in fp32, and half of that."""


@dataclass(frozen=True)
class Rows:
    """One entry for each line of the table."""

    work: Work
    seconds: Array
    """seconds of a step; nan: did not fit in memory"""
    fits: NDArray[Any]
    held_bytes: Array
    """peak bytes of a rank; nan: not published"""
    memory_bytes: Array
    stack: NDArray[Any]
    model: NDArray[Any]
    source: NDArray[Any]
    names: NDArray[Any]

    def take(self, chosen: Any) -> "Rows":
        """Rows that an index or a mask chooses."""
        return Rows(self.work.take(chosen), *(getattr(self, f.name)[chosen] for f in fields(self)[1:]))


def load_rows(path: Path) -> Rows:
    """Reads a table of measurements. Raises ConfigError if a required column is missing."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    try:
        return _rows(lines)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{path} is no table of measurements that can be read: {error!r}") from None


def _rows(lines: list[dict[str, str]]) -> Rows:
    def number(key: str) -> Array:
        return np.array([float(line[key] or "nan") for line in lines])

    def text(key: str) -> NDArray[Any]:
        return np.array([line[key] for line in lines])

    def of_device(name: str) -> Array:
        return np.array([float(getattr(device, name)) for device in devices])

    hidden, heads, kv_heads = number("hidden"), number("heads"), number("kv_heads")
    tensor, pipeline, virtual, zero = number("tp"), number("pp"), number("vp"), number("zero")
    gated, vocabulary, length = number("gated"), number("vocab"), number("seq")
    none = np.zeros_like(hidden)
    stages, layers, position, embeds, predicts = _stages(pipeline, number("layers"))
    matrices = 2 * hidden * (hidden + kv_heads * hidden / heads) + (2 + gated) * hidden * number("ffn")
    tied = (number("tied") > 0) & (pipeline == 1)
    tables = embeds + np.where(tied[:, None], 0.0, predicts)
    micro_batches = number("gbs") / (number("dp") * number("mbs"))
    devices = [published_device(line) for line in lines]
    states = np.array([_state(line) for line in lines])
    stack, precision = text("stack"), text("precision")
    work = Work(
        hidden=hidden,
        ffn=number("ffn"),
        gated=gated,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden / heads,
        embedding_dim=hidden,
        vocabulary=vocabulary,
        labels=length,
        stacks=(Stack(layers, length, length / 2, none),),
        stages=stages,
        parameters=(layers * matrices[:, None] + tables * (vocabulary * hidden)[:, None]) / tensor[:, None],
        embeds=embeds,
        predicts=predicts,
        in_flight=in_flight(pipeline, virtual, micro_batches, position),
        sequences=number("gbs"),
        micro=number("mbs"),
        tensor=tensor,
        sequence=number("sp"),
        pipeline=pipeline,
        virtual=virtual,
        context=number("cp"),
        data=number("dp"),
        zero=zero,
        deepspeed=(zero > 1).astype(float),
        recompute=np.array([float(RECOMPUTE.index(name)) for name in text("recompute")]),
        width=none + 2,
        weight_bytes=states[:, 0],
        gradient_state_bytes=states[:, 1],
        optimizer_bytes=states[:, 2],
        inner_widths=2 + gated * np.where(np.isin(stack, _PLAIN_GATES), 2, 1),
        logit_bytes=np.select([stack == name for name in _LOGIT_BYTES], list(_LOGIT_BYTES.values()), 12.0),
        products_kept=np.array([float(name.startswith("torchtitan")) for name in stack]),
        logit_ranks=np.where(stack == "aleph-alpha", 1.0, tensor),
        logit_positions=none + np.inf,
        rotary=gated,
        angle_bytes=none + 4,
        windows=none,
        score_biases=none,
        score_bytes=none,
        read_score_bytes=none,
        score_share=none + 1,
        most_scores=none + 1,
        pair_bytes=none,
        shaw_rows=none,
        head_norms=none,
        norms=none + 2,
        embedding_norms=none,
        final_norms=none,
        head_tensors=none + 2,
        norm_bytes=np.array([0.0 if _fuses_norms(line) else _UNFUSED for line in lines]),
        dropout=none,
        ffn_dropout=none,
        gradient_bytes=np.where(zero > 1, 2.0, 4.0),
        fp8=(precision == "fp8").astype(float),
        rounding_bytes=none,
        kernel=np.array([_kernel(line) for line in lines]),
        fused_norms=np.array([float(_fuses_norms(line)) for line in lines]),
        generation=np.array([GENERATIONS.index(device.generation) for device in devices]),
        peak_flops=of_device("bf16_flops"),
        memory_bytes_per_s=of_device("memory_bytes_per_s"),
        processors=of_device("processors"),
        link_bytes_per_s=of_device("link_bytes_per_s"),
        network_bytes_per_s=number("ib_GBps_per_gpu") * 1e9,
        node=of_device("devices"),
    )
    held, memory = number("mem_GB") * 1e9, of_device("memory_gib") * 2**30
    fits = text("outcome") == "ok"
    return Rows(work, number("step_s"), fits, held, memory, stack, text("model"), text("source"), text("id"))


def _stages(pipeline: Array, layers: Array) -> tuple[Array, Array, Array, Array, Array]:
    """[n, 3] each, of the first stage, those between and the last: how many, layers, place, and whether they embed and
    predict. Where layers don't divide, the ends, with embedding and loss, have fewer."""
    ones = np.ones_like(pipeline)
    several = (pipeline > 1).astype(float)
    count = np.stack([ones, np.maximum(pipeline - 2, 0), several], axis=1)
    between = np.ceil(layers / pipeline)
    ends = np.where(pipeline > 2, (layers - between * (pipeline - 2)) / 2, between)
    held = np.stack([ends, between, ends], axis=1) * (count > 0)
    position = np.stack([0 * ones, ones, pipeline - 1], axis=1) * (count > 0)
    embeds = np.stack([ones, 0 * ones, 0 * ones], axis=1)
    predicts = np.stack([1 - several, 0 * ones, several], axis=1)
    return count, held, position, embeds, predicts


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
