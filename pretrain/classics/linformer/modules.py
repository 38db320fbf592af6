"""Keys and values projected along the sequence (Linformer: Wang et al. 2020, arXiv 2006.04768, equation 7).

    K' = E K       V' = F V       E, F [k, n], for all heads of a layer; out = softmax(Q K'^T / sqrt(d)) V'

Positions that are padding add nothing, so a sequence has the same result in a longer row; a shorter one uses the first
columns of E and F.

Shapes: S positions, B batch, H heads, D head width, k projected length, n the model's sequence length.
"""

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region
from torch import Tensor, nn

from pretrain.attention.patterns.projections import KeyProjection
from pretrain.classics.linformer.key import Linformer


class SequenceProjection(KeyProjection):
    """E and F of one layer, on all tensor ranks, which sum their gradients over their heads."""

    def __init__(self, settings: Linformer, length: int, groups: ProcessGroupCollection) -> None:
        super().__init__(settings, length, groups)
        self.groups = groups
        shape = (settings.projected_length, length)
        self.keys = nn.Parameter(torch.empty(shape))
        self.values = None if settings.shares_values else nn.Parameter(torch.empty(shape))

    def forward(self, key: Tensor, value: Tensor, key_mask_BS: Tensor | None) -> tuple[Tensor, Tensor]:
        """[S, B, H, D] each -> [k, B, H, D] each. `key_mask_BS`: positions that are not padding; None: all."""
        if key_mask_BS is not None:
            shown = key_mask_BS.T[:, :, None, None]
            key, value = (x.masked_fill(~shown, 0) for x in (key, value))
        keys_kn = self._replicated(self.keys)
        values_kn = keys_kn if self.values is None else self._replicated(self.values)
        pairs = ((keys_kn, key), (values_kn, value))
        projected = [torch.einsum("ks,sbhd->kbhd", table[:, : len(x)].to(x.dtype), x) for table, x in pairs]
        return projected[0], projected[1]

    def _replicated(self, table: Tensor) -> Tensor:
        # Flat: otherwise the gradient is that of a transposed table, which gloo would sum in the wrong order.
        replicated: Tensor = copy_to_tensor_model_parallel_region(table.flatten(), group=self.groups.tp)
        return replicated.view_as(table)
