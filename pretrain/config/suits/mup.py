"""Runs of a model with maximal update parametrization."""

from pretrain.config.optimizer import AdafactorOptimizer, AdamOptimizer, AdamWOptimizer, LionOptimizer, MuonOptimizer
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
    other_heads = config.model.mup.base_head_dim not in (None, config.model.dim_per_head)
    if isinstance(optimizer, MuonOptimizer) and optimizer.per_head and other_heads:
        raise ValueError(
            "model.mup: optimizer.per_head=true updates heads as matrices, whose rates are worked out for heads of one "
            "size: leave out model.mup.base_head_dim, so that wider models have more heads, or set per_head=false"
        )
    if not isinstance(
        optimizer, AdamWOptimizer | AdamOptimizer | LionOptimizer | AdafactorOptimizer | MuonOptimizer
    ):  # fmt: skip
        raise ValueError(
            f"model.mup is for update rules that step by the learning rate at every width, which optimizer.name="
            f"{optimizer.name} is not: use adamw, adam, lion, muon or adafactor"
        )
