"""Models in fp16 or bf16: megatron-core's wrapper of a chunk, whose outputs keep their names."""

from typing import Any

from megatron.core.transformer.module import Float16Module

from pretrain.models.outputs import ModelOutputs


class HalfPrecisionModule(Float16Module):
    """megatron-core's, which casts what the last stage puts out to fp32, and would make a plain tuple of it."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        outputs = super().forward(*inputs, **named)
        return ModelOutputs(*outputs) if isinstance(outputs, tuple) else outputs
