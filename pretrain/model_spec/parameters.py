"""The number of parameters of a model, and the pipeline chunk that holds each: sums over its specs (`modules.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Literal

from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.model_spec.embeddings import WORD_EMBEDDINGS
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.model_spec.split import chunk_layers

Stages = Literal["own", "ends", "all"]
"""pipeline stages that hold a parameter: only one, the first and last (a tied embedding), or all (shared layers)"""


@dataclass(frozen=True)
class StageParameter:
    """A parameter of one pipeline stage."""

    spec: ParameterSpec
    """the spec of the original, if this is an alias"""
    name: str
    """the parameter's own name, also if it is an alias"""
    copy: bool
    """whether this is an alias whose original is on another stage"""
    stages: Stages
    """stages that hold a copy or the original, and sum their gradients"""


def num_parameters(model: Model, padded: bool = True) -> int:
    """Parameters, trained or frozen; a tied embedding and shared layers count once. `padded`: including the rows that
    round up the vocabulary, as built; otherwise without them, as papers count."""
    originals = (d for d in parameter_specs(model) if d.alias_of is None)
    return sum(d.size if padded else prod(d.unpadded_shape) for d in originals)


def num_active_parameters(model: Model) -> int:
    """Parameters that each token passes through, without the rows that round up the vocabulary. The input embedding
    counts in full, as in `num_parameters`."""
    return num_parameters(model, padded=False) - num_idle_parameters(model)


def num_idle_parameters(model: Model) -> int:
    """Parameters that a token does not pass through: those of all experts but as many as its router chooses."""
    if model.experts is None:
        return 0
    idle, every = model.experts.count - model.experts.top_k, model.experts.count
    return sum(spec.size // every * idle for spec in parameter_specs(model) if ".mlp.experts." in spec.name)


def num_trained_parameters(model: Model) -> int:
    """Parameters that a run updates, as built (`finetune`)."""
    return sum(d.size for d in parameter_specs(model) if d.alias_of is None and d.trained)


def first_layer_matrix_size(model: Model) -> int:
    """Number of values in the matrices of the first layer."""
    return sum(d.size for d in parameter_specs(model) if d.depth == 1 and d.is_matrix)


def bucket_parameters(config: RunConfig, tensor: int) -> int:
    """Parameters per gradient bucket with `tensor` tensor ranks: by default the size of one layer's matrices. Smaller
    buckets mean more messages, larger ones more memory and a later first exchange."""
    return config.parallel.bucket_parameters or first_layer_matrix_size(config.model) // tensor


def parameters_by_chunk(
    specs: Sequence[ParameterSpec], layers: Sequence[int], stages: int
) -> list[list[StageParameter]]:
    """The parameters of each pipeline chunk. `layers`: number of layers of each chunk; chunk i is on stage i modulo
    `stages`. Raises ConfigError if stages would share anything but a tied embedding or layers that all stages have."""
    ends = list(accumulate(layers))

    def chunk_of(d: ParameterSpec) -> int:
        layer = min(max(d.depth, 1), ends[-1])
        return next(chunk for chunk, end in enumerate(ends) if layer <= end)

    by_name = {d.name: d for d in specs}
    users: dict[str, set[int]] = {d.name: {chunk_of(d)} for d in specs if d.alias_of is None}
    for alias in (d for d in specs if d.alias_of is not None):
        users[alias.alias_of or ""].add(chunk_of(alias))
    chunks: list[list[StageParameter]] = [[] for _ in layers]
    held: set[tuple[str, int]] = set()
    for d in specs:
        original, chunk = by_name[d.alias_of or d.name], chunk_of(d)
        if (original.name, chunk) not in held:  # under the name of its first use in a chunk
            held.add((original.name, chunk))
            on = _stages_of(original.name, users[original.name], stages)
            chunks[chunk].append(StageParameter(original, d.name, d.alias_of is not None, on))
    return chunks


def _stages_of(name: str, chunks: set[int], stages: int) -> Stages:
    """The stages that hold a parameter which `chunks` use."""
    if len(chunks) == 1:
        return "own"
    if name == WORD_EMBEDDINGS:  # megatron-core has a process group for these
        return "ends"
    if chunks == set(range(stages)):
        return "all"
    raise ConfigError(
        f"{name} is shared by {len(chunks)} pipeline chunks on {stages} stages, but besides a tied embedding only "
        "parameters that every stage has in its single chunk can be shared: set parallel.pipeline=1 and "
        "parallel.virtual=1"
    )


def chunk_parameters(model: Model, layout: Layout) -> list[list[StageParameter]]:
    """The parameters of each pipeline chunk of `model`."""
    layers = chunk_layers(model, layout.pipeline, layout.virtual)
    return parameters_by_chunk(parameter_specs(model), layers, layout.pipeline)


def num_expert_parameters(model: Model, trained: bool = False) -> int:
    """Parameters that expert ranks share: those of all experts."""
    specs = (spec for spec in parameter_specs(model) if "expert" in spec.axes)
    return sum(spec.size for spec in specs if spec.trained or not trained)


def num_rank_parameters(
    model: Model, layout: Layout, stage: int, trained: bool = False, of_experts: bool = False
) -> int:  # fmt: skip
    """Number of parameters on a tensor rank of pipeline stage `stage`, without sharding over data ranks or expert
    ranks. `trained`: only those that the run updates; `of_experts`: only those that expert ranks share."""
    held = [held.spec for chunk in chunk_parameters(model, layout)[stage :: layout.pipeline] for held in chunk]
    counted = [spec for spec in held if spec.trained or not trained]
    counted = [spec for spec in counted if "expert" in spec.axes or not of_experts]
    ranks = {"tensor": layout.tensor, "expert_tensor": layout.expert_tensor}
    return sum(prod(spec.local_shape(ranks)) for spec in counted)
