"""Arrays of the host that attention reads on a device in every step."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


class DeviceCopies:
    """An array and its copy on each device. A copy is made once: copying from pageable memory makes the host wait until
    the device has done all that was queued before."""

    def __init__(self, values: Any) -> None:
        self.values: np.ndarray[Any, Any] = np.asarray(values)
        self._copies: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The array as a tensor of its type on `device`, which nobody may write to."""
        if device not in self._copies:
            self._copies[device] = torch.tensor(self.values, device=device)
        return self._copies[device]
