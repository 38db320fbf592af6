"""`optimizer`: the update rule."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field

from pretrain.config.section import Section, named


class _AnyOptimizer(Section):
    name: str
    learning_rate: float = Field(gt=0, le=1000, description="peak learning rate")
    clip_norm: float = Field(1.0, ge=0, description="largest global gradient norm; 0: no clipping")


class _TwoMoments(_AnyOptimizer):
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(0.95, ge=0, lt=1, description="decay of the second moment")
    eps: float = Field(1e-8, ge=1e-30, le=1, description="added to the root of the second moment")
    weight_decay: float = Field(0.1, ge=0, description="decoupled but for adam; never on biases and norms")


class AdamWOptimizer(_TwoMoments):
    name: Literal["adamw"] = "adamw"


class AdamOptimizer(_TwoMoments):
    """AdamW with the decay added to the gradient (docs/optimizers.md)."""

    name: Literal["adam"] = "adam"


class LambOptimizer(_TwoMoments):
    name: Literal["lamb"] = "lamb"


class AdafactorOptimizer(_AnyOptimizer):
    """Its second moment decays by 1 - step^-0.8."""

    name: Literal["adafactor"] = "adafactor"
    beta1: float = Field(0.0, ge=0, lt=1, description="decay of the first moment; 0: there is none")
    weight_decay: float = Field(0.0, ge=0, description="decoupled; never on biases and norms")
    relative: bool = Field(
        True, description="the learning rate is a part of each parameter's root mean square (at least 1e-3)"
    )


class AdagradOptimizer(_AnyOptimizer):
    """Its second moment is the sum of all squares, and never decays (CTRL)."""

    name: Literal["adagrad"] = "adagrad"
    initial: float = Field(0.1, ge=0, le=1e6, description="added to the sum of squares from the first step on")
    eps: float = Field(1e-10, ge=1e-30, le=1, description="added to the root of the sum")
    weight_decay: float = Field(0.0, ge=0, description="decoupled; never on biases and norms")


Optimizer = Annotated[
    AdamWOptimizer | AdamOptimizer | LambOptimizer | AdafactorOptimizer | AdagradOptimizer,
    Discriminator("name"),
    BeforeValidator(named("adamw")),
]
