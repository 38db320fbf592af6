"""Runs of a model with experts."""

from pretrain.config.run_sections import RunSections

_OF_FEED_FORWARD = {"fc1", "fc2"}


def check_experts(config: RunSections) -> None:
    """Raises ValueError for what experts are not computed with."""
    if config.model.experts is None:
        return
    lora = config.finetune.lora
    if lora is not None and lora.dropout and (targets := _OF_FEED_FORWARD.intersection(lora.targets)):
        raise ValueError(
            f"finetune.lora.dropout={lora.dropout} is drawn by row and position, and experts read rows of many: set "
            f"it to 0, or leave {', '.join(sorted(targets))} out of finetune.lora.targets"
        )
