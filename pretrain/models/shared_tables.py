"""Embedding tables of one model that another one uses too."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.models.network import Network

_MARKS = ("is_embedding_or_output_parameter", "zero_out_wgrad", "shared_embedding")
"""attributes by which megatron-core knows how a token embedding is used"""


def share_tables(generator: Network, main: Network) -> None:
    """Gives a chunk of a generator the embedding tables of the same chunk of the main model, which alone has them among
    its parameters: gradients of both uses add up there."""
    if not generator.pre_process:
        return
    ours, theirs = generator.embedding, main.embedding
    assert ours.encoder is not None
    for mark in _MARKS:
        if hasattr(ours.word_embeddings.weight, mark):
            setattr(theirs.word_embeddings.weight, mark, getattr(ours.word_embeddings.weight, mark))
    _replace(ours, "word_embeddings", theirs.word_embeddings)
    for name in ("position_embeddings", "segment_embeddings"):
        table: Any = getattr(theirs.encoder, name)
        if table is not None:
            _replace(ours.encoder, name, table)


def add_tables(main: Network, generator: Network) -> None:
    """Adds the embeddings of a chunk of a generator to those of the same chunk of the main model, whose gradients stop
    there (DeBERTa v3's gradient-disentangled sharing: He et al. 2021, arXiv 2111.09543, section 3.2)."""
    if main.pre_process:
        for own, other in zip(_tables(main), _tables(generator), strict=True):
            own.register_forward_hook(_Plus(other))


class _Plus:
    """Adds the rows of `table`, which is no submodule of the module that is hooked."""

    def __init__(self, table: nn.Module) -> None:
        self.table = table

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], rows: Tensor) -> Tensor:
        with torch.no_grad():
            other: Tensor = self.table(*inputs)
        return rows + other


def _tables(network: Network) -> Iterator[nn.Module]:
    embedding: Any = network.embedding
    yield embedding.word_embeddings
    for name in ("position_embeddings", "segment_embeddings"):
        table = getattr(embedding.encoder, name)
        if table is not None:
            yield table


def _replace(module: nn.Module, name: str, table: nn.Module) -> None:
    """Makes `table` an attribute of `module`, and none of its submodules."""
    del module._modules[name]
    module.__dict__[name] = table
