"""Time that Triton takes to compile kernels, which counts as spent on compiling (`process.compilation`)."""

from functools import cache
from typing import Any

from pretrain.attention.compiled import is_compiling
from pretrain.process import compilation


@cache
def watch() -> None:
    """Counts compilations from now on. Triton's interpreter compiles nothing."""
    import triton

    compilation.kept_in(triton.knobs.cache.dir)
    triton.knobs.compilation.listener = _compiled


def _compiled(*, times: Any, **_: Any) -> None:
    if not is_compiling():  # what torch.compile has Triton compile counts already
        compilation.add(times.total / 1e6)
