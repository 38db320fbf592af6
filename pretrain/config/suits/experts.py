"""Runs of a model with experts."""

from pretrain.config.run_sections import RunSections

_OF_FEED_FORWARD = {"fc1", "fc2"}


def check_experts(config: RunSections) -> None:
    """Raises ValueError for what experts are not computed with."""
    if config.model.experts is None:
        return
    lora = config.finetune.lora
    if lora is not None and (targets := _OF_FEED_FORWARD.intersection(lora.targets)):
        raise ValueError(
            f"finetune.lora.targets: {', '.join(sorted(targets))} of experts are several matrices each, which have no "
            "update here: leave them out"
        )
