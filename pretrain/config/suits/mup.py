"""Runs of a model with maximal update parametrization."""

from pretrain.config.optimizer import AdafactorOptimizer, AdamOptimizer, AdamWOptimizer, LionOptimizer
from pretrain.config.run_sections import RunSections


def check_mup(config: RunSections) -> None:
    """Raises ValueError for update rules whose steps do not keep their size at every width."""
    optimizer = config.optimizer
    if config.model.mup is None:
        return
    if isinstance(optimizer, AdamOptimizer) and optimizer.weight_decay:
        raise ValueError(
            "model.mup: optimizer.name=adam adds its decay to gradients, which fall with the width while weights fall "
            "otherwise: set optimizer.weight_decay=0, or optimizer.name=adamw"
        )
    if isinstance(optimizer, AdafactorOptimizer) and optimizer.scale_parameter:
        raise ValueError(
            "model.mup: optimizer.scale_parameter=true makes steps relative to the weights, which fall with the width: "
            "set it to false, or optimizer.name=adamw"
        )
    if not isinstance(optimizer, AdamWOptimizer | AdamOptimizer | LionOptimizer | AdafactorOptimizer):
        raise ValueError(
            f"model.mup is for update rules that step by the learning rate at every width, which optimizer.name="
            f"{optimizer.name} is not: use adamw, adam, lion or adafactor"
        )
