"""`optimizer`: the update rule."""

from typing import Any, Literal

from pydantic import Field, model_validator

from pretrain.config.section import Section, refuse_idle


class Optimizer(Section):
    name: Literal["adamw", "adam", "lamb", "adafactor"] = Field(
        "adamw", description="update rule; adam is adamw with the decay added to the gradient (docs/optimizers.md)"
    )
    learning_rate: float = Field(gt=0, description="peak learning rate")
    beta1: float = Field(
        0.9, ge=0, lt=1, description="decay of the first moment; adafactor: by itself 0, which has none"
    )
    beta2: float = Field(0.95, ge=0, lt=1, description="decay of the second moment; adafactor's is 1 - step^-0.8")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment; not of adafactor")
    weight_decay: float = Field(
        0.1, ge=0, description="decoupled but for adam; never on biases and norms; adafactor: by itself 0"
    )
    relative: bool = Field(
        True, description="adafactor: the learning rate is a part of each parameter's root mean square (at least 1e-3)"
    )
    clip_norm: float = Field(1.0, ge=0, description="largest global gradient norm; 0: no clipping")

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_adafactor(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("name") == "adafactor":
            return {"beta1": 0.0, "weight_decay": 0.0, **values}
        return values

    @model_validator(mode="after")
    def _fields_do_something(self) -> "Optimizer":
        refuse_idle(self, "optimizer", ("beta2", "eps") if self.name == "adafactor" else ("relative",))
        return self
