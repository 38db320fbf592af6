"""The parameters of a run's generator (`generator`), beside those of its model.

Names are those of a model of its own after `generator.`. Embedding tables are the model's, one parameter with two uses;
or with `generator.embedding_sharing: gdes` its own, and the model's tables are what is added to them.
"""

from collections.abc import Iterable
from dataclasses import replace

from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import Layout
from pretrain.model_spec.embeddings import WORD_EMBEDDINGS
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameter_spec import Constant, ParameterSpec
from pretrain.model_spec.parameters import StageParameter, chunk_parameters, num_parameters

PREFIX = "generator."
TABLES = frozenset(
    {
        WORD_EMBEDDINGS,
        "embedding.encoder.position_embeddings.weight",
        "embedding.encoder.segment_embeddings.weight",
    }
)
"""Embedding tables of a model."""


def shared_tables(config: RunConfig) -> frozenset[str]:
    """Parameters of the model that the generator uses too, which has none of these names."""
    return frozenset() if added_tables(config) else TABLES


def added_tables(config: RunConfig) -> dict[str, str]:
    """Tables of the model that are added to tables of the generator, by name: the names of these."""
    if config.generator is None or config.generator.embedding_sharing == "shared":
        return {}
    return {spec.name: PREFIX + spec.name for spec in parameter_specs(config.model) if spec.name in TABLES}


def run_specs(config: RunConfig) -> list[ParameterSpec]:
    """All parameters of a run that its checkpoints have: the model's, and the generator's own."""
    return [*_from_zero(config, parameter_specs(config.model)), *generator_specs(config)]


def _from_zero(config: RunConfig, specs: Iterable[ParameterSpec]) -> list[ParameterSpec]:
    added = added_tables(config)
    return [_starting_at_zero(spec) if spec.name in added else spec for spec in specs]


def _starting_at_zero(spec: ParameterSpec) -> ParameterSpec:
    return replace(spec, init=Constant(0.0))


def num_run_parameters(config: RunConfig) -> int:
    """Parameters of all models of a run, as built; those that both have count once."""
    return num_parameters(config.model) + sum(spec.size for spec in generator_specs(config))


def generator_specs(config: RunConfig) -> list[ParameterSpec]:
    """The parameters that the generator has of its own; none without one."""
    model = config.generator_model
    if model is None:
        return []
    specs, shared = parameter_specs(model, PREFIX), shared_tables(config)
    return [spec for spec in specs if spec.alias_of is None and spec.name.removeprefix(PREFIX) not in shared]


def model_chunk_parameters(config: RunConfig, layout: Layout) -> list[list[StageParameter]]:
    """The parameters of each pipeline chunk of a run's model. Those whose copy is the generator's are shared with its
    stage."""
    chunks = chunk_parameters(config.model, layout)
    if config.generator_model is None:
        return chunks
    if added := added_tables(config):
        return [
            [replace(held, spec=_starting_at_zero(held.spec)) if held.spec.name in added else held for held in chunk]
            for chunk in chunks
        ]
    of_generator = {held.name: held for chunk in chunk_parameters(config.generator_model, layout) for held in chunk}
    return [
        [replace(held, stages=of_generator[held.name].stages) if held.name in TABLES else held for held in chunk]
        for chunk in chunks
    ]


def generator_chunk_parameters(config: RunConfig, layout: Layout) -> list[list[StageParameter]]:
    """The parameters of each pipeline chunk of the generator that its modules have of their own, under their names in
    it. On the last of several stages, the output projection is a copy of the token embedding that it uses."""
    assert config.generator_model is not None
    shared = shared_tables(config)
    words = next(spec for spec in parameter_specs(config.model) if spec.name == WORD_EMBEDDINGS)
    return [
        [
            replace(held, spec=words if held.spec.name in shared else _prefixed(held.spec))
            for held in chunk
            if held.copy or held.spec.name not in shared
        ]
        for chunk in chunk_parameters(config.generator_model, layout)
    ]


def _prefixed(spec: ParameterSpec) -> ParameterSpec:
    return replace(spec, name=PREFIX + spec.name)
