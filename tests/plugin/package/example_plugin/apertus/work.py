"""What the activation keeps, for `pretrain plan`. No torch."""

from collections.abc import Callable
from dataclasses import dataclass

from example_plugin.apertus.key import KEY
from pretrain.config.model import Model
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.model_work import ModelWork
from pretrain.plan.estimate.products import positions_of
from pretrain.plan.estimate.workload import LayerStack, LayerWork, StepWorkload


class XieluWork(ModelWork):
    def layer(self, model: Model, number: int) -> LayerWork | None:
        return XieluLayerWork() if KEY.of(model) is not None else None


@dataclass(frozen=True)
class XieluLayerWork(LayerWork):
    def kept_bytes(self, work: StepWorkload, stack: LayerStack, keeps: Callable[[str], Array]) -> Array:
        """Both branches' factors, their mask, and what the exponential is."""
        kept: Array = _features(work, stack) * (3 * work.step.activation_bytes + 1)
        return kept

    def gradient_bytes(self, work: StepWorkload, stack: LayerStack) -> Array:
        """Gradients of both branches and of the output."""
        live: Array = 3 * _features(work, stack) * work.step.activation_bytes
        return live


def _features(work: StepWorkload, stack: LayerStack) -> Array:
    found: Array = positions_of(work, stack) * stack.ffn / work.layout.tensor
    return found


WORK = XieluWork()
