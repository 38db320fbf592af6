"""The last hidden states of a model that another one learns from, and its logits, made when they are needed: those of
all positions of a step would take more memory than both models."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pretrain.models.layer_states import LayerStates
from pretrain.models.products import matmul

JudgeStates = Callable[[Tensor], Tensor]
"""the last hidden states [L, B, H], under sequence parallelism this tensor rank's -> a scalar"""


@dataclass(frozen=True)
class LastAnswers:
    """Answers of a fine-tuned model to one micro-batch, without gradients."""

    answers_LBK: Tensor
    layers: LayerStates | None
    """states of some layers, where a loss compares them"""


@dataclass(frozen=True, kw_only=True)
class LastStates:
    """Tensors of the last pipeline stage for one micro-batch: without gradients, all positions on every tensor rank."""

    hidden_LBH: Tensor
    """the last layer's output"""
    projected_LBH: Tensor
    """input of the output projection"""
    weight_VH: Tensor
    """the rows of the output projection of this tensor rank"""
    bias_V: Tensor | None
    finish: Callable[[Tensor], Tensor]
    """function of the head that is applied to logits"""
    layers: LayerStates | None = None
    """states of some layers, where a loss compares them"""

    def logits(self, where: slice) -> Tensor:
        """[l, B, V / tensor ranks] fp32, of some positions."""
        return self.finish(matmul(self.projected_LBH[where], self.weight_VH, self.bias_V)).float()
