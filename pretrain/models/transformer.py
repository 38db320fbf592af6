"""The Transformer of Vaswani et al. 2017 (arXiv 1706.03762)."""

from functools import partial

from pretrain.models.network import Network, PlainHead

build = partial(Network, head=lambda model, megatron: PlainHead())
"""(model, megatron, first, last, chunk) -> one chunk"""
