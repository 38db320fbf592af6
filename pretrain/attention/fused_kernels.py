"""torch's fused attention kernels on a GPU: which of them it chooses, the order in which it tries them, and keys and
values with fewer heads than queries.

`scaled_dot_product_attention` takes the first kernel, by torch's order, that can compute a call (`select_sdp_backend`
in ATen's `cuda/sdp_utils.cpp`). Flash attention and cuDNN's read a head of keys once for all queries that share it. The
memory-efficient kernel of torch 2.13 does not: torch would write out all scores in its place.
"""

import os
from enum import Enum

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from pretrain.attention.query_heads import for_each_query_head


class KernelOrder(Enum):
    """Order in which torch is to try its attention kernels."""

    CUDNN_FIRST = "cuDNN's, then torch's own order"
    NO_CUDNN = "torch's own order, without cuDNN's"
    OWN = "torch's own order"


_HOPPER = 9, 0
_CUDNN_VERSION = 91501
"""the first whose results are right for lengths that are no multiple of 128 (pytorch #169849)"""
_TAKES_GROUPS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
_NAMES = {
    SDPBackend.CUDNN_ATTENTION: "cuDNN's fused kernel",
    SDPBackend.FLASH_ATTENTION: "flash attention",
    SDPBackend.EFFICIENT_ATTENTION: "torch's memory-efficient kernel",
    SDPBackend.MATH: "no fused kernel: length x length scores are written out",
}


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None = None, is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """torch's function, [B, H, Q, D], of keys and values with as many heads as queries or with fewer: these are copied
    for each query only if the kernel that torch chooses for the call does not take them."""
    grouped = k.shape[1] < q.shape[1]
    if grouped and _chosen(q, k, v, attn_mask=attn_mask, is_causal=is_causal) not in _TAKES_GROUPS:
        grouped, k, v = False, *(for_each_query_head(x, q.shape[1]) for x in (k, v))
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
    )


def order_of(device: torch.device, *, deterministic: bool, lengths_vary: bool) -> KernelOrder:
    """The order for training on `device`. cuDNN's kernel has no deterministic backward pass, and builds a plan for each
    new length, which takes the host milliseconds: `lengths_vary` where each document of a row is a call of its own.
    Otherwise Hopper has it first, as torch 2.13 does by itself, unless the user turned that off."""
    if device.type != "cuda":
        return KernelOrder.OWN
    if deterministic or lengths_vary:
        return KernelOrder.NO_CUDNN
    turned_off = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1"
    is_new = (torch.backends.cudnn.version() or 0) >= _CUDNN_VERSION
    is_hopper = torch.cuda.get_device_capability(device) == _HOPPER
    return KernelOrder.CUDNN_FIRST if is_hopper and is_new and not turned_off else KernelOrder.OWN


def set_order(order: KernelOrder) -> None:
    """Has torch try its kernels in `order`, in this process. Once, not around each call, where it would cost the host
    time."""
    if order is KernelOrder.OWN:
        return
    torch.backends.cuda.enable_cudnn_sdp(order is KernelOrder.CUDNN_FIRST)
    if order is KernelOrder.CUDNN_FIRST:
        # torch's first choice in a process may set an order, but only this one. There is no public function for it
        # besides the context manager `sdpa_kernel`.
        cudnn = SDPBackend.CUDNN_ATTENTION.value
        others = [kernel for kernel in torch._C._get_sdp_priority_order() if kernel != cudnn]
        torch._C._set_sdp_priority_order([cudnn, *others])


def causal_kernel(
    device: torch.device, dtype: torch.dtype, *, heads: int, key_heads: int, length: int, dim: int
) -> str:  # fmt: skip
    """Name of the kernel that torch chooses on a GPU for causal attention in training, for a reader. torch itself is
    asked, about tensors that take no memory to speak of."""
    one = torch.empty(1, 1, 1, dim, device=device, dtype=dtype, requires_grad=True)
    q, k = (one.expand(1, count, length, dim) for count in (heads, key_heads))
    with torch.enable_grad():
        return _NAMES[_chosen(q, k, k, attn_mask=None, is_causal=True)]


def _chosen(q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None, is_causal: bool) -> SDPBackend:
    """The kernel that torch's function chooses, by the operator with which it chooses itself."""
    choice = torch._fused_sdp_choice(q, k, v, attn_mask, 0.0, is_causal, enable_gqa=k.shape[1] < q.shape[1])
    return SDPBackend(choice)
