"""Differences between the releases of megatron-core that this project runs on: 0.16.1 to 0.19. A name that
megatron-core has or lacks tells them apart, not its version, so that a patch release needs no change here.

| Since | Difference |
|---|---|
| 0.17 | schedules look for the layer of a multi-token prediction under another name: `MtpNames` |
| 0.18 | a feed-forward layer is called, and with more arguments: `feed_forward_builder` |
| 0.18 | data parallelism warns where it lays out its buffers itself: `data_parallel` |
| 0.19 | an optimizer's method for the gradients of the norm has another name: `gradients_of_norm` |
| 0.19 | starting the exchange of gradients asks for the current CUDA stream: `pretrain/engine/device.py` has one |
"""

import logging
from collections.abc import Callable
from typing import Any

from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, distributed_data_parallel
from megatron.core.transformer import transformer_layer
from torch import Tensor, nn


def feed_forward_builder(module: type[nn.Module]) -> Any:
    """A layer's `mlp` submodule that builds `module` from the config alone."""
    if not hasattr(transformer_layer, "MlpBuilder"):
        return module

    def build(*, config: Any, **_: Any) -> nn.Module:
        """Leaves out process groups, whether a multi-token prediction has the layer, and its name."""
        return module(config)

    return build


def data_parallel(megatron: Any, ddp: DistributedDataParallelConfig, chunk: nn.Module) -> DistributedDataParallel:
    """megatron-core's data parallelism with the buffers that it lays out by itself, which is no cause for a warning."""
    log = logging.getLogger(distributed_data_parallel.__name__)
    log.addFilter(_is_not_of_layout)
    try:
        return DistributedDataParallel(megatron, ddp, chunk)
    finally:
        log.removeFilter(_is_not_of_layout)


def _is_not_of_layout(record: logging.LogRecord) -> bool:
    return "full_param_layout not provided" not in record.getMessage()


def gradients_of_norm(optimizer: Any) -> list[Tensor]:
    """The gradients of an optimizer of megatron-core that count in the norm on this rank."""
    names = ("get_grads_for_grad_norm", "get_main_grads_for_grad_norm")
    find: Callable[[], list[Tensor]] = next(getattr(optimizer, name) for name in names if hasattr(optimizer, name))
    return find()


class MtpNames:
    """The names under which megatron-core's schedules look for the layer of a multi-token prediction, to tell it the
    number of the micro-batch."""

    transformer_layer: Any

    @property
    def mtp_model_layer(self) -> Any:
        """`transformer_layer`."""
        return self.transformer_layer
