"""Embedding tables of one model that another one uses too."""

from typing import Any

from torch import nn

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


def _replace(module: nn.Module, name: str, table: nn.Module) -> None:
    """Makes `table` an attribute of `module`, and none of its submodules."""
    del module._modules[name]
    module.__dict__[name] = table
