"""Builds the engine of a config: the only module that names an engine class and chooses its kernels."""

from collections.abc import Callable

import torch

from pretrain.attention.fused_kernels import order_of, set_order
from pretrain.config.run_config import RunConfig
from pretrain.engine import device
from pretrain.engine.base import Engine
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.layout.layout import Layout
from pretrain.models.kernels import PROVIDERS, Kernels, in_fp8


def make_engine(
    config: RunConfig,
    layout: Layout,
    train: bool = True,
    kernels: Callable[[torch.device], Kernels] | None = None,
    hosts_backend: str = "gloo",
) -> Engine:
    """Builds the engine on the default process group (`rendezvous.init_process_group`), its weights uninitialised. With
    `train=False` it only scores and decodes, and holds no gradients and no optimizer state. `kernels`: a provider in
    place of that of `run.kernels`; `hosts_backend`: backend of the group in which hosts communicate beside GPUs."""
    provided = (kernels or PROVIDERS[config.run.kernels])(device.install())
    lengths_vary = not train or "documents" in config.objective.columns
    set_order(order_of(provided.device, deterministic=config.run.deterministic, lengths_vary=lengths_vary))
    provided = in_fp8(provided) if config.precision == "fp8" else provided
    return MegatronEngine(config, layout, provided, train, hosts_backend)
