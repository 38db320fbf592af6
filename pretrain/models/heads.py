"""Modules that turn the last layer's output into logits."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from pretrain.config.model import Model
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.outputs import ModelOutputs


class Project(Protocol):
    """The projection to the vocabulary."""

    def __call__(self, x_LBH: Tensor, finish: Callable[[Tensor], Tensor] = ...) -> ModelOutputs:
        """Outputs with logits, or what is said of them, after `finish`, which looks at those of one position."""


class PlainHead(nn.Module):
    """Logits straight from the last layer, times `scale`, and if there is a `cap`, softly between it and its opposite
    (Gemma 2: arXiv 2408.00118, section 2)."""

    def __init__(self, scale: float = 1.0, cap: float | None = None, bias: bool = False) -> None:
        """`bias`: the projection has one."""
        super().__init__()
        self.scale, self.cap, self.bias = scale, cap, bias

    def forward(self, hidden_LBH: Tensor, project: Project) -> ModelOutputs:
        x_LBH = hidden_LBH * self.scale if self.scale != 1 else hidden_LBH
        return project(x_LBH) if self.cap is None else project(x_LBH, partial(_capped, self.cap))


def _capped(cap: float, logits: Tensor) -> Tensor:
    return cap * torch.tanh(logits / cap)


def plain(model: Model, megatron: MegatronConfig) -> PlainHead:
    """See `network.Head`."""
    return PlainHead(cap=model.final_logit_softcap, bias=model.capabilities.head_bias)


def scaled_if_tied(model: Model, megatron: MegatronConfig) -> PlainHead:
    """T5's: a head that is the embedding, whose entries have deviation 1, gets its input scaled down."""
    return PlainHead(model.base_width**-0.5 if model.tie_word_embeddings else 1.0)
