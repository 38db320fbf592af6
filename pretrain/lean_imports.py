"""Leaves out of a start what libraries import and no run of ours uses: more than half of its processor time.

`install` waits for the first import of megatron-core and of DeepSpeed, whoever makes it. During that import:

| Left out | Instead |
|---|---|
| torch's compiler, which `torch.compile` of a function loads | loaded at its first call, when it is compiled anyway |
| `torch.distributed.tensor`, FSDP, symmetric memory | what megatron-core has for a torch without them |
| `torch.distributed.checkpoint`, of which megatron-core keeps one module | loaded when that is used |
| MLflow, with which DeepSpeed's autotuner can report | what it has for a Python without it |

Afterwards everything can be imported as if nothing had been. `torch._dynamo` alone stays a stand-in until something is
asked of it that needs it: torch's optimizers import it at each step, to tell the compiler, if there is one, where to
stop. What a program has already loaded is used as it is.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from importlib.machinery import ModuleSpec, PathFinder
from threading import get_ident
from types import FunctionType, ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_CHECKPOINT = "torch.distributed.checkpoint"
_ABSENT = {
    "megatron.core": (
        "torch.distributed._tensor",
        "torch.distributed.tensor",
        "torch.distributed.fsdp",
        "torch.distributed._symmetric_memory",
    ),
    "deepspeed": ("mlflow",),
}
"""What is not there for whom, while it is imported: each has a way for that."""


def install() -> None:
    """Once in a process, before megatron-core is imported."""
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """First finder on `sys.meta_path`, which answers only for the names above."""

    def __init__(self) -> None:
        self._absent: tuple[str, ...] = ()
        self._thread = 0

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name in _ABSENT:
            spec = PathFinder.find_spec(name, path)
            if spec is not None and spec.loader is not None:
                spec.loader = _Leanly(spec.loader, self)  # type: ignore[assignment]
            return spec
        if name in self._absent and get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is left out", name=name)
        if name.startswith(f"{_COMPILER}.") and name in sys.modules:
            # The stand-in has given way when it was asked for its path, and all of them were loaded.
            return ModuleSpec(name, _AsLoaded(sys.modules[name]))  # type: ignore[arg-type]
        return None

    @contextmanager
    def importing(self, name: str) -> Iterator[None]:
        """Inside, `name` is imported."""
        import torch
        import torch.distributed

        compile_now, stands_in = torch.compile, _CHECKPOINT not in sys.modules
        if _COMPILER not in sys.modules:
            sys.modules[_COMPILER] = torch._dynamo = _Compiler(_COMPILER)
        if stands_in:
            sys.modules[_CHECKPOINT] = _checkpoint()
        torch.compile = partial(_compile_when_called, compile_now)
        outer, self._absent, self._thread = self._absent, _ABSENT[name], get_ident()
        try:
            yield
        finally:
            self._absent = outer
            torch.compile = compile_now
            if stands_in:
                del sys.modules[_CHECKPOINT]


class _Leanly:
    """A library's own loader, and what is left out while it runs."""

    def __init__(self, own: Any, finder: _Finder) -> None:
        self._own, self._finder = own, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._own.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._own
        with self._finder.importing(module.__name__):
            self._own.exec_module(module)


class _AsLoaded:
    """Loader of a module that is already imported."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        with suppress(AttributeError):  # of a module that keeps its own, which importing did not change either
            module.__spec__ = self._spec


class _TraceRules(ModuleType):
    """A module of `torch._dynamo`, whose cache a new process group clears: what is not loaded has none."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_compiler().trace_rules, name)

    @staticmethod
    def clear_lru_cache() -> None:
        """Nothing is in it."""


class _Compiler(ModuleType):
    """`torch._dynamo` until something is asked of it that needs it: what is not loaded compiles nothing."""

    trace_rules = _TraceRules(f"{_COMPILER}.trace_rules")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # what those ask who look through all modules
            raise AttributeError(name)
        return getattr(_compiler(), name)

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Where the compiler is to stop."""

    @staticmethod
    def disable(function: Any = None, recursive: bool = True, **options: Any) -> Any:
        """`function`, which the compiler, once there is one, leaves alone."""
        if not isinstance(function, FunctionType):
            return _compiler().disable(function, recursive, **options)
        disabled: Callable[..., Any] | None = None

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal disabled
            if disabled is None:
                if isinstance(sys.modules.get(_COMPILER), _Compiler):
                    return function(*args, **kwargs)
                disabled = _compiler().disable(function, recursive, **options)
            return disabled(*args, **kwargs)

        return call


def _compiler() -> Any:
    """torch's, which is loaded here if it is not yet."""
    import torch

    if isinstance(sys.modules.get(_COMPILER), _Compiler):
        del sys.modules[_COMPILER], torch._dynamo
    import torch._dynamo

    return torch._dynamo


def _compile_when_called(compile_now: Callable[..., Any], function: Any = None, **options: Any) -> Any:
    """`torch.compile` (`compile_now`), which also compiles at the first call, but loads the compiler at once."""
    if function is None:
        return partial(_compile_when_called, compile_now, **options)
    compiled: Callable[..., Any] | None = None

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal compiled
        if compiled is None:
            compiled = compile_now(function, **options)
        return compiled(*args, **kwargs)

    return call


class _Planner(ModuleType):
    """A module of the package for checkpoints, which is loaded when a name in it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from torch.distributed.checkpoint import default_planner

        return getattr(default_planner, name)


def _checkpoint() -> ModuleType:
    """A stand-in for the package, with that module alone: what else is asked of it is absent."""
    package = ModuleType(_CHECKPOINT)
    package.default_planner = _Planner(f"{_CHECKPOINT}.default_planner")  # type: ignore[attr-defined]
    return package
