"""DeepSpeed's ZeRO optimizers on a device that is not there, among ranks that are not there."""

import os
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.rehearse.patches.attributes import no_op, set_attributes
from pretrain.rehearse.patches.tensor_device import RequestedMeta
from pretrain.rehearse.recorder import DEVICE, Recorder

_FEW_RANKS = 16
"""data ranks for which DeepSpeed's stage 3 may cut gradients, as it does on a GPU"""


def replace_deepspeed(recorder: Recorder) -> None:
    """Makes the replacements in DeepSpeed, which it imports."""
    os.environ.update(DS_ACCELERATOR="cuda", LOCAL_SIZE="1", DS_LOG_LEVEL="warning")
    with redirect_stdout(StringIO()):  # it prints which of its own kernels could not be compiled
        from deepspeed.accelerator import get_accelerator
        from deepspeed.runtime.comm import coalesced_collectives
        from deepspeed.runtime.zero import partition_parameters, partitioned_param_coordinator, stage3, utils
        from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
        from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    # It makes a device's name of what torch.cuda.current_device says, which is no index here.
    set_attributes(
        get_accelerator(), device_name=lambda index=None: str(DEVICE), current_device_name=lambda: str(DEVICE)
    )
    # It keeps the shapes of weights as tensors on the meta device.
    set_attributes(DeepSpeedZeroOptimizer, __init__=_with_meta(DeepSpeedZeroOptimizer.__init__))
    # These compare values with those that rank 0 sends.
    for module in (utils, stage3, partition_parameters, partitioned_param_coordinator):
        if hasattr(module, "assert_ints_same_as_other_ranks"):
            set_attributes(module, assert_ints_same_as_other_ranks=no_op())
    set_attributes(stage3, reduce_scatter_coalesced=_joining_scatter(coalesced_collectives, recorder))
    # These read whether gradients overflowed.
    for optimizer in (DeepSpeedZeroOptimizer_Stage3, DeepSpeedZeroOptimizer):
        set_attributes(optimizer, has_overflow=_without_overflow(optimizer.has_overflow))


def _with_meta(make: Callable[..., None]) -> Callable[..., None]:
    def make_with_meta(*args: Any, **kwargs: Any) -> None:
        with RequestedMeta():
            make(*args, **kwargs)

    return make_with_meta


def _without_overflow(has_overflow: Callable[..., Any]) -> Callable[..., bool]:
    def check(*args: Any, **kwargs: Any) -> bool:
        has_overflow(*args, **kwargs)
        return False

    return check


def _joining_scatter(collectives: Any, recorder: Recorder) -> Callable[..., list[Tensor]]:
    """Function that stage 3 scatters gradients with, from DeepSpeed's module `coalesced_collectives`, made fast for
    many ranks."""
    scatter = collectives._torch_reduce_scatter_fn
    scatter_slices = collectives.reduce_scatter_coalesced

    @torch.no_grad()
    def scatter_joined(tensors: list[Tensor], group: Any = None) -> list[Tensor]:
        """DeepSpeed cuts each gradient into a slice for each data rank, and joins them by rank. Of a hundred gradients
        and hundreds of ranks that takes minutes, so they are joined as they are, in as many bytes."""
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        sizes = [-(-tensor.numel() // ranks) for tensor in tensors]
        padding = sum(sizes) * ranks - sum(tensor.numel() for tensor in tensors)
        if ranks <= _FEW_RANKS or (len(tensors) == 1 and not padding):
            own_slices: list[Tensor] = scatter_slices(tensors, group)
            return own_slices
        parts = [tensor.view(-1) for tensor in tensors]
        parts += [parts[0].new_empty(padding)] if padding else []
        short = sum(ranks - tensor.numel() // size for tensor, size in zip(tensors, sizes, strict=True))
        recorder.operators += len(tensors) * ranks + short - (padding > 0)  # slices, and what fills short ones up
        joined = torch.cat(parts).div_(ranks)
        own = joined.chunk(ranks)[rank]
        scatter(joined, own, group=group)
        ends = np.cumsum([0, *sizes])
        return [
            own.narrow(0, int(start), min(size, max(0, tensor.numel() - rank * size)))
            for start, size, tensor in zip(ends, sizes, tensors, strict=False)
        ]

    return scatter_joined
