"""`optimizer`: the update rule."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, model_validator

from pretrain.config.section import Section, named

_LEAST_CLIP_NORM = 1e-6  # far below any gradient's norm; smaller ones drown in the eps of the update rules


class _AnyOptimizer(Section):
    name: str
    learning_rate: float = Field(ge=1e-12, le=1000, description="peak learning rate")
    clip_norm: float = Field(
        1.0, ge=0, description="largest global gradient norm; larger gradients are scaled down to it; 0: no clipping"
    )

    @model_validator(mode="after")
    def _trains_something(self) -> "_AnyOptimizer":
        """Smaller rates than the least above are below the rounding of every weight in fp32."""
        if 0 < self.clip_norm < _LEAST_CLIP_NORM:
            raise ValueError(
                f"optimizer.clip_norm={self.clip_norm:g} leaves nothing of any gradient: set {_LEAST_CLIP_NORM:g} or "
                "more, or 0 for no clipping"
            )
        rate, decay = self.learning_rate, getattr(self, "weight_decay", 0.0)
        if rate * decay >= 1:
            raise ValueError(
                f"optimizer.weight_decay={decay:g} with optimizer.learning_rate={rate:g} takes away more than each "
                "weight has, in every step: choose values whose product is below 1"
            )
        return self


class _TwoMoments(_AnyOptimizer):
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(0.95, ge=0, lt=1, description="decay of the second moment")
    eps: float = Field(1e-8, ge=1e-30, le=1, description="epsilon added to the root of the second moment")
    weight_decay: float = Field(
        0.1, ge=0, description="weight decay, decoupled except for adam; never applied to biases and norms"
    )


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
    beta1: float = Field(0.0, ge=0, lt=1, description="decay of the first moment; 0: no first moment")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay; never applied to biases and norms")
    scale_parameter: bool = Field(
        True, description="scale the learning rate by the root mean square of each parameter (at least 1e-3)"
    )


class AdagradOptimizer(_AnyOptimizer):
    """Its second moment is the sum of all squares, and never decays (CTRL)."""

    name: Literal["adagrad"] = "adagrad"
    initial_accumulator_value: float = Field(0.1, ge=0, le=1e6, description="initial value of the sum of squares")
    eps: float = Field(1e-10, ge=1e-30, le=1, description="epsilon added to the root of the sum of squares")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay; never applied to biases and norms")


Optimizer = Annotated[
    AdamWOptimizer | AdamOptimizer | LambOptimizer | AdafactorOptimizer | AdagradOptimizer,
    Discriminator("name"),
    BeforeValidator(named("adamw")),
]
