"""BART (Lewis et al. 2019, arXiv 1910.13461)."""

from functools import partial

from pretrain.models.network import Network, PlainHead

build = partial(Network, head=lambda model, megatron: PlainHead())
"""(model, megatron, first, last, chunk) -> one chunk"""
