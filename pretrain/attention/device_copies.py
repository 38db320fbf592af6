"""Arrays of the host that attention reads on a device in every step."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


class DeviceCopies:
    """An array and its copy on each device. A copy is made once, and from page-locked memory: from pageable memory, the
    host would wait until the device has done all that was queued before."""

    def __init__(self, values: Any) -> None:
        self.values: np.ndarray[Any, Any] = np.asarray(values)
        self._copies: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The array as a tensor of its type on `device`, which nobody may write to."""
        if device not in self._copies:
            tensor = torch.tensor(self.values)
            if device.type == "cuda":
                tensor = tensor.pin_memory()
            self._copies[device] = tensor.to(device, non_blocking=True)
        return self._copies[device]
