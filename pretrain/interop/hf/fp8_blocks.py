"""Weights in 8 bits with a factor for each block of 128 x 128, as DeepSeek-V3, its R1 and Qwen's FP8 folders have them:
`NAME` in fp8 (e4m3) beside `NAME_scale_inv`, which the values of a block are multiplied by."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pretrain.errors import ConfigError

DTYPE = "F8_E4M3"
"""name of the weights' type in safetensors"""
SCALE = "_scale_inv"
"""end of the name of a weight's factors, behind the weight's own"""
_BLOCK = 128
_KNOWN: dict[str, tuple[Any, ...]] = {
    "quant_method": ("fp8",),
    "fmt": ("e4m3",),
    "weight_block_size": ([_BLOCK, _BLOCK],),
    "activation_scheme": ("dynamic", None),  # of inference in 8 bits: the weights are the same
    "scale_fmt": ("ue8m0", None),  # powers of two, in a type that has others
    "dequantize": (False, True, None),
}
_ANY = ("modules_to_not_convert", "ignored_layers")  # names of what is not in 8 bits


def check_settings(settings: object) -> None:
    """Raises ConfigError for a `quantization_config` that describes anything else, naming what."""
    if not isinstance(settings, Mapping) or settings.get("quant_method") != "fp8":
        method = settings.get("quant_method") if isinstance(settings, Mapping) else settings
        raise ConfigError(
            f"has quantization_config (quant_method {method}): its weights are quantised; save it in fp32, fp16 or bf16"
        )
    for key, values in _KNOWN.items():
        if settings.get(key, values[-1]) not in values:
            raise ConfigError(
                f"has quantization_config with {key} {settings[key]}, which is not known here: save it in fp32, fp16 "
                "or bf16"
            )
    if unknown := sorted(key for key in settings if key not in _KNOWN and key not in _ANY and settings[key]):
        raise ConfigError(
            f"has quantization_config with {unknown[0]}, which is not known here: save it in fp32, fp16 or bf16"
        )


def scale_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the factors of a weight [rows, columns]; its last blocks may be smaller."""
    return tuple(math.ceil(size / _BLOCK) for size in shape)


def dequantised(weight: Tensor, scale: Tensor) -> Tensor:
    """The weight [rows, columns] in fp32."""
    value = weight.float()
    factors = scale.float().repeat_interleave(_BLOCK, 0)[: value.shape[0]]
    for start in range(0, value.shape[1], _BLOCK):  # a block column at a time: factors of all would double the memory
        value[:, start : start + _BLOCK] *= factors[:, start // _BLOCK, None]
    assert value.dtype == torch.float32
    return value
