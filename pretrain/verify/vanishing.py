"""Parameters whose gradient is zero but for rounding, so that no two layouts agree on it."""

from pretrain.config.run_config import RunConfig
from pretrain.model_spec.modules import parameter_specs


def vanishing_gradients(config: RunConfig) -> frozenset[str]:
    """Names of parameters that add the same to the answers of all positions of a row, where the loss is a softmax over
    these: the bias of the classifier, and where no dense layer lies between them, that of the last norm."""
    model = config.model
    if model.task_head is None or config.objective.loss not in ("spans", "choice") or model.has_vocabulary_logits:
        return frozenset()
    if model.task_head.kind == "span":  # the dense layers of which an activation follows
        return frozenset({"head.start.bias", "head.norm.bias", "head.end.bias"})
    layers = sum(model.stacks)
    names = ["head.classifier.bias"]
    if not model.has_pooler:
        place = "final" if model.norm_first else ".mlp_bda.norm."
        last = (spec.name for spec in parameter_specs(model) if spec.depth == layers and place in spec.name)
        names += [name for name in last if name.endswith(".bias")]
    return frozenset(names)
