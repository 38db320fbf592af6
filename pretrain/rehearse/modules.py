"""The module of the model that is computed, in the forward pass and in the backward pass."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModuleTracker:
    """Follows calls of modules. A backward pass runs nodes that autograd numbered in the forward pass, so the module of
    each number is noted there."""

    def __init__(self) -> None:
        self._names: dict[nn.Module, str] = {}
        self._called: list[str] = []
        self._of_node: dict[int, str] = {}

    def follow(self, chunks: Iterable[nn.Module]) -> None:
        """Names the modules of these chunks from now on."""
        for chunk in chunks:
            for name, module in chunk.named_modules():
                parts = name.split(".")
                self._names[module] = ".".join(parts[next((i for i, p in enumerate(parts) if p != "module"), -1) :])
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)

    @property
    def current(self) -> str:
        """The innermost module, or nothing outside of the model."""
        if self._called:
            self._of_node[torch.autograd._get_sequence_nr() - 1] = self._called[-1]  # type: ignore[attr-defined]
            return self._called[-1]
        node = torch._C._current_autograd_node()
        return "" if node is None else self._of_node.get(node._sequence_nr(), "")

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        self._called.append(self._names.get(module, self._called[-1] if self._called else ""))

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._called.pop()
