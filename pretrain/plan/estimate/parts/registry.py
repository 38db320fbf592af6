"""The parts whose work is planned, in the order in which it is added up: ours, and those of installed packages."""

from data_pipeline.common.plugins import Registry
from pretrain.config.classics import declared
from pretrain.config.model import Model
from pretrain.plan.estimate.model_work import ModelWork
from pretrain.plan.estimate.parts.experts import ExpertsWork
from pretrain.plan.estimate.parts.latent_attention import LatentAttentionWork
from pretrain.plan.estimate.parts.mtp import MtpWork

_BUILT_IN: dict[str, ModelWork] = {
    "experts": ExpertsWork(),
    "latent_attention": LatentAttentionWork(),
    "mtp": MtpWork(),
}
_GROUP = "pretrain.part_work"
PART_WORK: Registry[ModelWork] = Registry(_GROUP, _BUILT_IN, ModelWork, declared(_GROUP))


def works_of(model: Model) -> list[ModelWork]:
    """The work of the parts that a model may have."""
    return [*_BUILT_IN.values(), *(PART_WORK[name] for name in model.parts_apart if name in PART_WORK)]


def unplanned_part(model: Model) -> str | None:
    """Key of a part that the model has and that does not say what its work is; None: all do."""
    return next((name for name in model.parts_apart if name not in PART_WORK), None)
