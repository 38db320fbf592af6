"""Request of `pretrain features`: the texts, layers and tokens whose vectors it computes. Without torch, so that a
mistake is reported at once."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from pretrain.config.model import Model
from pretrain.errors import ConfigError

if TYPE_CHECKING:
    from pretrain.engine.base import Stack

Pool = Literal["token", "mean", "first", "last"]
FORMS = "last, sum, sum:N, concat:N, all, or layer numbers such as 0,6,12"


@dataclass(frozen=True)
class LayerChoice:
    """`--layers`: hidden states of some layers as one vector: `last`, `sum` or `sum:N` (the sum of all layers, or of
    the last N), `concat:N` (the last N, one after the other), `all` (the embedding output and every layer), or numbers
    (0 is the embedding output). Of `all`, and of several numbers, a vector has a row for each layer."""

    text: str

    @classmethod
    def parse(cls, text: str) -> "LayerChoice":
        """Raises ValueError for what is no choice."""
        if not re.fullmatch(r"last|all|sum(:[1-9]\d*)?|concat:[1-9]\d*|\d+(,\d+)*", text):
            raise ValueError(f"{text!r} is not {FORMS}")
        return cls(text)

    def numbers(self, total: int) -> list[int]:
        """The layers, of a stack of `total`. Raises ConfigError for layers that it does not have."""
        kind, _, count = self.text.partition(":")
        if kind == "last":
            return [total]
        if kind == "all":
            return list(range(total + 1))
        if kind in ("sum", "concat"):
            wanted = int(count or total)
            if wanted > total:
                raise ConfigError(f"--layers {self.text} takes {wanted} layers, and the stack has {total}: take fewer")
            return list(range(total - wanted + 1, total + 1))
        chosen = [int(number) for number in self.text.split(",")]
        if max(chosen) > total:
            raise ConfigError(
                f"--layers {self.text}: the stack has {total} layers (0 is the embedding output): choose others"
            )
        return chosen

    def shape(self, total: int, hidden: int) -> tuple[int, ...]:
        """The shape of a vector."""
        layers = len(self.numbers(total))
        if self.text.startswith("concat"):
            return (layers * hidden,)
        return (hidden,) if self._is_one_row(layers) else (layers, hidden)

    def combine(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """[..., layers, hidden], of the layers `numbers` -> [..., *shape]."""
        *outer, layers, hidden = states.shape
        if self.text.startswith("concat"):
            return states.reshape(*outer, layers * hidden)
        if self.text.startswith("sum"):
            summed: NDArray[np.float32] = states.sum(axis=-2)
            return summed
        return states[..., 0, :] if self._is_one_row(layers) else states

    def _is_one_row(self, layers: int) -> bool:
        return self.text.startswith("sum") or (layers == 1 and self.text != "all")


@dataclass(frozen=True)
class Texts:
    """The texts of a file."""

    file: Path
    lines: Sequence[int]
    """line number of each text"""
    texts: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class FeatureRequest:
    """Settings of the vectors: layers, pooling, stack, and the way that texts are read."""

    layers: LayerChoice
    pool: Pool
    stack: "Stack | None"
    """None: the encoder, if there is one"""
    truncate: bool
    """cut texts that are longer than the model reads, instead of refusing them"""
    batch: int | None
    """texts in a forward pass; None: as many as keep a device busy"""

    def stack_of(self, model: Model) -> "tuple[Stack, int]":
        """The stack and its number of layers. Raises ConfigError for a stack or layers that the model lacks,
        and for a recurrent one."""
        if model.recurrence is not None:
            raise ConfigError(f"features are hidden states of Transformer layers, and this is a {model.family} model")
        encoder_layers, decoder_layers = model.stacks
        stack: Stack = self.stack or ("encoder" if encoder_layers else "decoder")
        layers = encoder_layers if stack == "encoder" else decoder_layers
        if not layers:
            raise ConfigError(f"this {model.family} model has no {stack}: leave --stack out")
        self.layers.numbers(layers)
        return stack, layers
