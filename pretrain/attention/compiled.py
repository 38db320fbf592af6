"""torch.compile, whose time counts as spent on compiling (`process.compilation`)."""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from pretrain.process import compilation

_began: list[float] = []
"""when the compilation that is under way began"""


def compiled(function: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Any]:
    """`function` as torch.compile makes it, at its first calls."""
    _watch()
    return torch.compile(function, dynamic=dynamic)


def is_compiling() -> bool:
    """Whether torch.compile is at work in this process."""
    return bool(_began)


@cache
def _watch() -> None:
    """Counts compilations by torch.compile from now on, those of backward passes and loads from the disk included."""
    from torch._dynamo.callback import callback_handler
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    compilation.kept_in(cache_dir())
    callback_handler.register_start_callback(lambda _: _began.append(time.perf_counter()))
    callback_handler.register_end_callback(lambda _: _end())


def _end() -> None:
    if _began:
        compilation.add(time.perf_counter() - _began.pop())
