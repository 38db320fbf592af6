"""Parameters of the components of modules: norms, linear layers and tables, and where they lie in a model."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pretrain.config.model import Model
from pretrain.model_spec.blocks import RowBlocks
from pretrain.model_spec.init_schemes import SCHEMES, NormalScheme
from pretrain.model_spec.parameter_spec import Constant, FanSize, Normal, ParameterSpec


def norm(model: Model, width: int | None = None) -> Iterator[ParameterSpec]:
    """A layer norm or RMS norm of `width` features (default: the hidden size)."""
    yield vector("weight", width or model.hidden, start=0.0 if model.norm_type == "rms_zero_centered" else 1.0)
    if model.norm_type == "layer":
        yield vector("bias", width or model.hidden)


def norms(before: str, after: str, model: Model) -> Iterator[ParameterSpec]:
    """The norms before and after one sublayer."""
    if model.norm != "post":
        yield from under(before, norm(model))
    if model.norm != "pre":
        yield from under(after, norm(model))


def column(
    inputs: int, outputs: int, init: Normal, bias: bool, blocks: RowBlocks, *, fan_out: FanSize = "width"
) -> Iterator[ParameterSpec]:  # fmt: skip
    """A column-parallel linear layer of the hidden states: tensor ranks split its outputs."""
    weight = matrix("weight", (outputs, inputs), ("tensor", None), init, "width")
    yield replace(weight, blocks=blocks, fan_out=fan_out)
    if bias:
        yield vector("bias", outputs, axis="tensor")


def row(inputs: int, outputs: int, init: Normal, bias: bool, fan_in: FanSize) -> Iterator[ParameterSpec]:
    """A row-parallel linear layer: tensor ranks split its inputs, and its outputs are hidden states."""
    weight = matrix("weight", (outputs, inputs), (None, "tensor"), init, fan_in)
    yield replace(weight, blocks=RowBlocks(), fan_out="width")
    if bias:
        yield vector("bias", outputs)


def into_residual(
    scheme: NormalScheme, inputs: int, outputs: int, bias: bool, fan_in: FanSize
) -> Iterator[ParameterSpec]:  # fmt: skip
    return row(inputs, outputs, Normal((scheme.into_residual(inputs, outputs),)), bias, fan_in)


def replicated_linear(
    model: Model, inputs: int, outputs: int, bias: bool = True, *, fan_in: FanSize = "width", fan_out: FanSize = "width"
) -> Iterator[ParameterSpec]:
    """A linear layer outside the stacks, replicated on every tensor rank."""
    deviation = SCHEMES[model.init.name](model).projection(inputs, outputs)
    weight = matrix("weight", (outputs, inputs), (None, None), Normal((deviation,)), fan_in)
    yield replace(weight, blocks=RowBlocks(), fan_out=fan_out)
    if bias:
        yield vector("bias", outputs)


def output_linear(model: Model, inputs: int, outputs: int, bias: bool = True) -> Iterator[ParameterSpec]:
    """A linear layer outside the stacks whose outputs nothing but the loss reads."""
    return (replace(spec, blocks=None, fan_out=None) for spec in replicated_linear(model, inputs, outputs, bias))


def table(name: str, rows: int, model: Model) -> ParameterSpec:
    init = Normal((SCHEMES[model.init.name](model).table(),))
    return matrix(name, (rows, model.embedding_dim), (None, None), init)


def vocabulary(model: Model, name: str, deviation: float) -> ParameterSpec:
    shape = (model.padded_vocab_size, model.embedding_dim)
    return replace(matrix(name, shape, ("tensor", None), Normal((deviation,))), padding=padding_rows(model))


def padding_rows(model: Model) -> int:
    return model.padded_vocab_size - model.output_rows


def matrix(
    name: str,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    init: Constant | Normal,
    fan_in: FanSize = None,
) -> ParameterSpec:
    return ParameterSpec(name=name, shape=shape, axes=axes, init=init, is_matrix=True, fan_in=fan_in)


def vector(name: str, size: int, axis: str | None = None, start: float = 0.0) -> ParameterSpec:
    return ParameterSpec(name=name, shape=(size,), axes=(axis,), init=Constant(start), is_matrix=False)


def under(prefix: str, specs: Iterable[ParameterSpec]) -> Iterator[ParameterSpec]:
    return (spec.at(prefix + spec.name) for spec in specs)


def at(depth: int, prefix: str, specs: Iterable[ParameterSpec]) -> Iterator[ParameterSpec]:
    return (spec.at(prefix + spec.name, depth) for spec in specs)


def aliases(specs: Iterable[ParameterSpec], prefix: str, first: str) -> Iterator[ParameterSpec]:
    """The parameters of the layer named `prefix` as aliases of those of the layer named `first`."""
    return (replace(spec, alias_of=first + spec.name.removeprefix(prefix)) for spec in specs)
