"""The parts that layers have modules of: ours, and those of installed packages."""

from data_pipeline.common.plugins import Registry
from pretrain.config.model import Model
from pretrain.models.convolution import ConvolutionModules
from pretrain.models.experts import ExpertModules
from pretrain.models.latent_attention import LatentModules
from pretrain.models.slots import PartModules

PART_MODULES: Registry[PartModules] = Registry(
    "pretrain.part_modules",
    {"experts": ExpertModules(), "latent_attention": LatentModules(), "convolution": ConvolutionModules()},
    PartModules,
)


def modules_of(model: Model) -> list[PartModules]:
    """The parts that a model may have."""
    added = (PART_MODULES[name] for name in model.parts_of_packages if name in PART_MODULES)
    return [*PART_MODULES.built_in.values(), *added]
