"""The engine of a config: the one place that names a class of engines, and that chooses its kernels."""

from pretrain.config.run_config import RunConfig
from pretrain.engine import device
from pretrain.engine.base import Engine
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.layout.layout import Layout
from pretrain.models.kernels import PROVIDERS, in_fp8


def make_engine(config: RunConfig, layout: Layout, train: bool = True) -> Engine:
    """On the process group that this rank has joined (`device.join`), its weights not yet filled. With `train=False` it
    can only score and decode, and holds no gradients and no optimizer."""
    kernels = PROVIDERS[config.run.kernels](device.install())
    return MegatronEngine(config, layout, in_fp8(kernels) if config.precision == "fp8" else kernels, train)
