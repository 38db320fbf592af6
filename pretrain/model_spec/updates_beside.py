"""The parameters that fine-tuning puts beside those of layers."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.linears import matrix, vector
from pretrain.model_spec.parameter_spec import Constant, FanSize, Normal, ParameterSpec


def adapter(hidden: int, size: int) -> Iterator[ParameterSpec]:
    """A bottleneck adapter of `size` features. It starts close to the identity: its matrices come from a normal
    distribution of deviation 0.01 that is cut at two deviations (Houlsby et al. 2019)."""
    init = Normal((0.01,), limit=2.0)
    fans: tuple[FanSize, ...] = ("width", None)
    sizes = hidden, size
    for name, at in (("down", 0), ("up", 1)):
        inputs, outputs = sizes[at], sizes[1 - at]
        weight = matrix(f"{name}.weight", (outputs, inputs), (None, None), init, fans[at])
        yield replace(weight, blocks=RowBlocks(), fan_out=fans[1 - at])
        yield vector(f"{name}.bias", outputs)


def lora(weight: ParameterSpec, rank: int) -> Iterator[ParameterSpec]:
    """A [rank, inputs] and B [outputs, rank] beside a weight [outputs, inputs], each split like it; beside the weights
    of experts, as many as these. B starts at zero, A with the variance of PEFT's A, whose values are uniform between
    -1 / sqrt(inputs) and 1 / sqrt(inputs). B has the blocks of the weight."""
    (*experts, outputs, inputs), (*expert_axis, output_axis, input_axis) = weight.shape, weight.axes
    init = Normal(((3 * inputs) ** -0.5,))
    a = matrix("lora_a.weight", (*experts, rank, inputs), (*expert_axis, None, input_axis), init, weight.fan_in)
    b = matrix("lora_b.weight", (*experts, outputs, rank), (*expert_axis, output_axis, None), Constant(0.0))
    of_a = RowBlocks(parts=prod(experts))
    yield from (replace(a, blocks=of_a), replace(b, blocks=weight.blocks, fan_out=weight.fan_out))
