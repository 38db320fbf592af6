"""One model of a checkpoint that has two: the discriminator of an ELECTRA, or its generator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from data_pipeline.recipes.masked import Masked
from pretrain.checkpoint.files import Manifest
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.model_spec.generator import PREFIX, added_tables, generator_specs, shared_tables
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.mtp import PREFIX as MTP
from pretrain.model_spec.router_biases import router_bias_shapes

ModelOfRun = Literal["discriminator", "generator", "all"]
"""`all`: of a run of two models, both; of any other, its only one"""


@dataclass(frozen=True)
class StoredNames:
    """Names of one model's parameters in a checkpoint."""

    prefix: str = ""
    prefixed: frozenset[str] = frozenset()
    """parameters whose names have the prefix there"""
    unread: frozenset[str] = frozenset()
    """names there that are of the other model alone"""
    added: Mapping[str, str] = field(default_factory=dict)
    """parameters that are sums there, by name: the name of the second term"""

    def of(self, name: str) -> str:
        """The name in the checkpoint of a parameter of the model."""
        return self.prefix + name if name in self.prefixed else name


def mtp_names(model: Model) -> frozenset[str]:
    """Names of what a model has for further tokens alone."""
    names = {spec.name for spec in parameter_specs(model)} | router_bias_shapes(model).keys()
    return frozenset(name for name in names if name.startswith(MTP))


def mtp_tensors(checkpoint: Path) -> set[str]:
    """Names in a verified checkpoint of the tensors that are for further tokens alone."""
    return {name for name in Manifest.read(checkpoint).tensors if name.startswith(f"model/{MTP}")}


def one_model(config: RunConfig, model: ModelOfRun | None, checkpoint: Path) -> RunConfig:
    """The config of one model of the run of `config`, for scoring, as a run of its own would have it; of `all`, that of
    the run. Raises ConfigError where `model` is none of its models, or is not given and there are two."""
    if model == "all":
        return config
    if config.generator is None:
        if model is not None:
            raise ConfigError(f"{checkpoint} has one model, and --model chooses between two: leave it out")
        return config
    if model is None:
        raise ConfigError(
            f"{checkpoint} has two models, a discriminator and its generator: choose one with --model discriminator or "
            "--model generator"
        )
    if model == "discriminator":
        return config.model_copy(update={"generator": None})
    objective = Masked(noise_density=config.objective.noise_density)  # type: ignore[union-attr]
    return config.generator_config().model_copy(update={"objective": objective})


def stored_names(stored: RunConfig, config: RunConfig) -> StoredNames:
    """Where the parameters of the model of `config` are in a checkpoint of `stored`, whose model it is, or one of whose
    models (`one_model`)."""
    if stored.generator is None or config.generator is not None:
        return StoredNames(unread=mtp_names(stored.model) if config.model.mtp is None else frozenset())
    own = frozenset(spec.name for spec in generator_specs(stored))
    if config.objective.loss == stored.objective.loss:
        return StoredNames(unread=own, added=added_tables(stored))
    of_discriminator = {spec.name for spec in parameter_specs(stored.model)} - shared_tables(stored)
    return StoredNames(PREFIX, frozenset(name.removeprefix(PREFIX) for name in own), frozenset(of_discriminator))
