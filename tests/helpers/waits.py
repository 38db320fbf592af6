"""Where the host asks for what the device has found: on a GPU it waits there for all that was begun before."""

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_READS = {
    "item", "tolist", "cpu", "numpy", "nonzero", "equal", "allclose", "unique", "masked_select", "is_nonzero",
    "__bool__", "__int__", "__float__", "__index__", "__contains__",
}  # fmt: skip


class Waits(TorchFunctionMode):
    """Inside, `found` has the lines of code that a GPU's host would wait at, in order. It is the main thread that is
    watched, and what it calls through Python."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in _READS or (name == "__getitem__" and _is_mask(args[1])):
            caller = traceback.extract_stack()[-2]
            self.found.append(f"{caller.filename}:{caller.lineno} {name}")
        return function(*args, **(kwargs or {}))


def _is_mask(index: Any) -> bool:
    """Whether how many are picked depends on values."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in parts)
