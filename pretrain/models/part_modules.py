"""The parts that layers have modules of: ours, and those of installed packages."""

from data_pipeline.common.plugins import Registry
from pretrain.config.classics import declared
from pretrain.config.model import Model
from pretrain.models.experts import ExpertModules
from pretrain.models.latent_attention import LatentModules
from pretrain.models.slots import PartModules

_ROWS: dict[str, PartModules] = {
    "experts": ExpertModules(),
    "latent_attention": LatentModules(),
}
_GROUP = "pretrain.part_modules"
PART_MODULES: Registry[PartModules] = Registry(
    _GROUP,
    _ROWS,
    PartModules,
    declared(_GROUP),
)


def modules_of(model: Model) -> list[PartModules]:
    """The parts that a model may have."""
    added = (PART_MODULES[name] for name in model.named_parts if name in PART_MODULES)
    return [*_ROWS.values(), *added]
