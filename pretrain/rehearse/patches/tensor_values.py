"""Values of tensors that have none: all ones, and rows shared evenly among experts. Reading a value on the `cuda`
device makes the host wait for it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from pretrain.models import grouped
from pretrain.models.expert_exchange import ExpertExchange
from pretrain.rehearse.patches.attributes import set_attributes


def replace_values_of_tensors(wait: Callable[[str], None]) -> None:
    """Has fake tensors answer for their values, and calls `wait` with the cause where that makes the host wait."""

    def tolist(tensor: Any) -> Any:
        if tensor.is_cuda:
            wait("tolist")
        return np.ones(tuple(tensor.shape)).tolist()

    def to_numpy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.is_cuda:  # torch's own words
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        if tensor.dtype == torch.bfloat16:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return np.ones(tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))

    def address(tensor: Any) -> int:
        return int(tensor.untyped_storage()._cdata + tensor.storage_offset() * tensor.element_size())

    def host_counts(counts_E: Tensor, rows: int) -> list[int]:
        """Routes have no values: rows are shared among experts as evenly as they can be. Where a rank has all experts,
        other routes would change none of its sizes."""
        if counts_E.is_cuda:
            wait("tolist")
        return _even_shares(rows, len(counts_E))

    def host_sizes(exchange: Any, sent_R: Tensor, received_R: Tensor, rows: int) -> tuple[list[int], list[int]]:
        """Alike among the ranks that share experts, of which each has as many rows: what one sends to another, that one
        receives."""
        if sent_R.is_cuda:
            wait("tolist")
        sent = _even_shares(rows, len(sent_R))
        return sent, [sent[exchange._group.rank()]] * len(sent)

    set_attributes(grouped, host_counts=host_counts)
    set_attributes(ExpertExchange, _host_sizes=host_sizes)
    set_attributes(
        FakeTensor,
        tolist=tolist,  # torch would read the elements one by one
        numpy=to_numpy,
        data_ptr=address,  # by which the engine recognizes views
        pin_memory=lambda tensor, *args: tensor,
        record_stream=lambda tensor, stream: None,
    )


def _even_shares(rows: int, shares: int) -> list[int]:
    return [rows // shares + (share < rows % shares) for share in range(shares)]
