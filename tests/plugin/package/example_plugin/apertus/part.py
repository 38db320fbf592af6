"""What goes with the activation. No torch."""

from typing import Any

from example_plugin.apertus.key import KEY, XieluSettings
from pretrain.config.families import Capabilities
from pretrain.config.model_values import ModelValues
from pretrain.config.parallel import Parallel
from pretrain.config.part import ModelPart


class XieluPart(ModelPart[XieluSettings]):
    key = KEY

    def completed(self, value: Any, can: Capabilities) -> Any:
        return value or {} if self.key.name in can.parts else value

    def check(self, model: ModelValues) -> None:
        super().check(model)
        if self.of(model) is not None and model.gated:
            raise ValueError(f"model.activation={model.activation} has a gate, which model.xielu has not: use gelu")

    def refuses(self, model: ModelValues, parallel: Parallel) -> str | None:
        if self.of(model) is None or model.ffn_dim % parallel.tensor == 0:
            return None
        return f"parallel.tensor={parallel.tensor} does not divide the features of model.xielu"


XIELU = XieluPart()
