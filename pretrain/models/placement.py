"""Names and shapes of parameters that do not depend on the layout.

megatron-core numbers layers from zero on each stage and keeps a second copy of a tied embedding on the last one. Here
each parameter gets the name and the shape it has in the whole model, and where this rank's part lies in it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    set_tensor_model_parallel_attributes,
)
from torch import Tensor, nn

from pretrain.random.dropout import Dropout

_EMBEDDING = "embedding.word_embeddings.weight"


@dataclass(frozen=True)
class Parameter:
    """One parameter of this rank and its place in the whole model."""

    name: str
    value: nn.Parameter
    split_dim: int | None
    """dimension split over tensor ranks; None: every tensor rank holds all of it"""
    copy: bool
    """a second copy of a tied embedding, which lives under the name of the first"""
    tied: bool
    """an embedding whose copy lives on another stage, or that copy"""

    @property
    def of_vocabulary(self) -> bool:
        """Each row is of one token, and the last ones may be padding."""
        return self.name == _EMBEDDING or self.name.startswith("output_layer.")

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Of this tensor rank's part. Under ZeRO stage 3 the value itself is there only while it is computed with."""
        return tuple(getattr(self.value, "ds_shape", self.value.shape))

    def global_shape(self, tensor_ranks: int) -> tuple[int, ...]:
        shape = list(self.local_shape)
        if self.split_dim is not None:
            shape[self.split_dim] *= tensor_ranks
        return tuple(shape)

    def offset(self, tensor_rank: int) -> tuple[int, ...]:
        """Where this rank's part begins in the whole."""
        return tuple(tensor_rank * size if dim == self.split_dim else 0 for dim, size in enumerate(self.local_shape))


def parameters(chunk: nn.Module) -> Iterator[Parameter]:
    """The parameters of one (unwrapped) model chunk, under layout-free names."""
    tied = chunk.share_embeddings_and_output_weights and chunk.post_process != chunk.pre_process
    for module_name, module in chunk.named_modules():
        for leaf, value in module.named_parameters(recurse=False):
            name = _global_name(chunk, f"{module_name}.{leaf}")
            copy = tied and name == "output_layer.weight"
            if copy:
                name = _EMBEDDING
            yield Parameter(name, value, _split_dim(module, leaf), copy, tied and name == _EMBEDDING)


def mark_split(chunk: nn.Module) -> None:
    """Tells megatron-core which parameters are split over tensor ranks (its own initialisation would do so)."""
    for parameter in parameters(chunk):
        if parameter.split_dim is not None:
            _clear_marks(parameter.value)
            set_tensor_model_parallel_attributes(parameter.value, True, parameter.split_dim, 1)


def place_dropout(chunk: nn.Module, axes: Mapping[str, tuple[int, int]]) -> None:
    """Tells each dropout site its name in the whole model, and which part of it is this rank's: (rank, number of ranks)
    on the axes that share activations."""
    for name, module in chunk.named_modules():
        if isinstance(module, Dropout):
            module.place(_global_name(chunk, name), axes)


def _global_name(chunk: nn.Module, path: str) -> str:
    """The path to a module or parameter in `chunk`; where a module on it says its `global_name`, that instead."""
    found: Any = chunk
    name: list[str] = []
    for part in path.split("."):
        found = getattr(found, part)
        said = getattr(found, "global_name", None)
        name = [*name, part] if said is None else [said]
    return ".".join(name)


def _split_dim(module: nn.Module, leaf: str) -> int | None:
    if isinstance(module, (ColumnParallelLinear, VocabParallelEmbedding)):
        return 0
    if isinstance(module, RowParallelLinear) and leaf == "weight":
        return 1
    return getattr(module, "split_dim", None)


def _clear_marks(value: Tensor) -> None:
    for attribute in ("tensor_model_parallel", "partition_dim", "partition_stride"):
        if hasattr(value, attribute):
            delattr(value, attribute)
