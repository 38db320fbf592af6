"""The specification of one parameter, from which everything else follows: its name in checkpoints, the slice that each
rank holds and saves, initial values, weight decay, parameter counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import Literal

from pretrain.model_spec.blocks import RowBlocks

FanSize = Literal["width", "ffn"] | None


@dataclass(frozen=True)
class Constant:
    """An initial distribution with a single value."""

    value: float


@dataclass(frozen=True)
class Normal:
    """A normal distribution around zero. Blocks of `rows` rows of the first dimension use the `deviations` in turn, and
    start over after the last one."""

    deviations: tuple[float, ...]
    rows: int = 1
    limit: float = inf
    """deviations beyond which nothing is drawn: a truncated normal distribution"""


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """One parameter of a model, unsharded: the same for every layout."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    """for each dimension, the axis whose ranks split it equally, or None; the parameter is replicated along all other
    axes"""
    init: Constant | Normal
    is_matrix: bool
    """weights that multiply or that are looked up, as opposed to biases, norms and scales: those are excluded from
    weight decay, from LAMB's trust ratio and from Adafactor's factored second moment"""
    fan_in: FanSize = None
    """size with which the number of inputs of a linear layer grows from model to model: the hidden size, or that of the
    feed-forward layer. None: vectors, tables, whose rows are looked up or give a logit each, and layers with inputs of
    a fixed number (`mup.py`)"""
    fan_out: FanSize = None
    """the same of the number of its outputs, where it has `blocks`"""
    blocks: RowBlocks | None = None
    """matrices in it that Muon updates each by itself; None for what AdamW updates in its place: embeddings, tables of
    positions, the last layer before an output, and all that is no matrix"""
    depth: int = 0
    """position in the order of layers: 0 for embeddings, n for layer n (encoder layers first), and one more than the
    number of layers for the head"""
    padding: int = 0
    """number of trailing rows that only round up the vocabulary"""
    alias_of: str | None = None
    """name of the parameter that this one shares its values with, where it is a second use of them"""
    trained: bool = True
    """whether the run updates it; a frozen parameter has no gradient and no optimizer state (`finetune`)"""
    lr_mult: float = 1.0
    """multiplier of the learning rate, and so of decoupled weight decay"""
    wd_mult: float = 1.0
    """multiplier of `optimizer.weight_decay`, beside that of the learning rate"""
    fan_in_ratio: float = 1.0
    """number of inputs, in multiples of that of the model that hyperparameters are for (`mup.py`)"""
    fan_out_ratio: float = 1.0
    """the same of the number of outputs"""
    eps_mult: float = 1.0
    """multiplier of `optimizer.eps`"""
    frozen_updates: int = 0
    """number of updates of the run before the first one of this parameter; until then its gradient is zero"""

    def __post_init__(self) -> None:
        assert len(self.axes) == len(self.shape), f"{self.name}: an axis, or None, for each dimension"
        assert self.blocks is None or not self.padding, f"{self.name}: rows of padding belong to no block"

    def at(self, name: str, depth: int | None = None) -> "ParameterSpec":
        """The same parameter under another name and, unless it is None, at another depth. Quicker than
        `dataclasses.replace`: large models have thousands of parameters, whose names grow with each module around."""
        copy = object.__new__(ParameterSpec)
        vars(copy).update(vars(self), name=name, depth=self.depth if depth is None else depth)
        return copy

    @property
    def decays(self) -> bool:
        """Whether weight decay applies: to matrices only."""
        return self.is_matrix

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def unpadded_shape(self) -> tuple[int, ...]:
        """The shape without the rows that pad the vocabulary."""
        return (self.shape[0] - self.padding, *self.shape[1:])

    def local_shape(self, ranks: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of one rank's slice. `ranks`: number of ranks on each axis; axes that are absent have one."""
        splits = [1 if axis is None else ranks.get(axis, 1) for axis in self.axes]
        return tuple(size // ranks_on_axis for size, ranks_on_axis in zip(self.shape, splits, strict=True))
