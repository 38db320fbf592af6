"""Stochastic gradient descent with momentum: its settings, which plans read without torch."""

from typing import Literal

from pydantic import Field

from pretrain.config.optimizer import OptimizerSettings


class SgdSettings(OptimizerSettings):
    name: Literal["sgd"] = "sgd"
    momentum: float = Field(0.9, ge=0, lt=1, description="decay of the running sum of gradients")
    weight_decay: float = Field(0.0, ge=0, description="decoupled; never on biases of layers and norms")

    @property
    def num_moments(self) -> int:
        return 1
