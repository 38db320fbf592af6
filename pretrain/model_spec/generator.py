"""The parameters of a run's generator (`generator`), beside those of its model.

Names are those of a model of its own after `generator.`. Embedding tables are the model's: one parameter with two uses.
"""

from dataclasses import replace

from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import Layout
from pretrain.model_spec.modules import WORD_EMBEDDINGS, parameter_specs
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.model_spec.parameters import StageParameter, chunk_parameters, num_parameters

PREFIX = "generator."
SHARED_TABLES = frozenset(
    {
        WORD_EMBEDDINGS,
        "embedding.encoder.position_embeddings.weight",
        "embedding.encoder.segment_embeddings.weight",
    }
)
"""Parameters of the model that the generator uses too, which has none of these names."""


def run_specs(config: RunConfig) -> list[ParameterSpec]:
    """All parameters of a run that its checkpoints have: the model's, and the generator's own."""
    return [*parameter_specs(config.model), *generator_specs(config)]


def num_run_parameters(config: RunConfig) -> int:
    """Parameters of all models of a run, as built; those that both have count once."""
    return num_parameters(config.model) + sum(spec.size for spec in generator_specs(config))


def generator_specs(config: RunConfig) -> list[ParameterSpec]:
    """The parameters that the generator has of its own; none without one."""
    model = config.generator_model
    if model is None:
        return []
    specs = parameter_specs(model, PREFIX)
    return [spec for spec in specs if spec.alias_of is None and spec.name.removeprefix(PREFIX) not in SHARED_TABLES]


def model_chunk_parameters(config: RunConfig, layout: Layout) -> list[list[StageParameter]]:
    """The parameters of each pipeline chunk of a run's model. Those whose copy is the generator's are shared with its
    stage."""
    chunks = chunk_parameters(config.model, layout)
    if config.generator_model is None:
        return chunks
    of_generator = {held.name: held for chunk in chunk_parameters(config.generator_model, layout) for held in chunk}
    return [
        [replace(held, stages=of_generator[held.name].stages) if held.name in SHARED_TABLES else held for held in chunk]
        for chunk in chunks
    ]


def generator_chunk_parameters(config: RunConfig, layout: Layout) -> list[list[StageParameter]]:
    """The parameters of each pipeline chunk of the generator that its modules have of their own, under their names in
    it. On the last of several stages, the output projection is a copy of the model's token embedding."""
    assert config.generator_model is not None
    words = next(spec for spec in parameter_specs(config.model) if spec.name == WORD_EMBEDDINGS)
    return [
        [
            replace(held, spec=words if held.spec.name == WORD_EMBEDDINGS else _prefixed(held.spec))
            for held in chunk
            if held.copy or held.spec.name not in SHARED_TABLES
        ]
        for chunk in chunk_parameters(config.generator_model, layout)
    ]


def _prefixed(spec: ParameterSpec) -> ParameterSpec:
    return replace(spec, name=PREFIX + spec.name)
