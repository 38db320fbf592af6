"""Import hook of the commands that skips imports of megatron-core and DeepSpeed that no run uses: more than half of the
processor time of a start.

`install` is called by the `pretrain` command alone: `import pretrain` in any other program changes nothing. The hook
acts while megatron-core or DeepSpeed is imported for the first time, whoever imports it. During that import:

| Skipped | Instead |
|---|---|
| torch's compiler, which `torch.compile` of a function loads | loaded at the first call of such a function |
| `torch.distributed.tensor`, FSDP, symmetric memory | megatron-core's fallbacks for a torch without them |
| `torch.distributed.checkpoint`, of which megatron-core stores one module | loaded when that module is used |
| MLflow, to which DeepSpeed's autotuner can report | DeepSpeed's fallback for a Python without it |

Once the import has finished, everything can be imported as usual. Only `torch._dynamo` stays a placeholder until an
attribute is read that needs the compiler: torch's optimizers import it at each step, to tell a compiler where to stop.
Modules that the program has already loaded are used as they are. Where Transformer Engine is installed there is no
hook: megatron-core imports it, and it imports the compiler and FSDP itself.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
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
"""library -> modules that appear not to be installed while it is imported; it has a fallback for each"""


def install() -> None:
    """Installs the hook in this process, unless it is installed already or Transformer Engine is present.

    Call it before megatron-core is imported.
    """
    if find_spec("transformer_engine") is None and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """First finder on `sys.meta_path`. It handles only the names in the table above."""

    def __init__(self) -> None:
        self._absent: tuple[str, ...] = ()
        self._thread = 0

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name in _ABSENT:
            spec = PathFinder.find_spec(name, path)
            if spec is not None and spec.loader is not None:
                spec.loader = _LeanLoader(spec.loader, self)  # type: ignore[assignment]
            return spec
        if name in self._absent and get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is skipped while megatron-core or DeepSpeed is imported", name=name)
        if name.startswith(f"{_COMPILER}.") and name in sys.modules:
            # Reading the placeholder's path has loaded the compiler with all of its modules.
            return ModuleSpec(name, _LoadedModule(sys.modules[name]))  # type: ignore[arg-type]
        return None

    @contextmanager
    def importing(self, name: str) -> Iterator[None]:
        """Hides the modules that `name` is imported without, inside the block."""
        import torch
        import torch.distributed

        compile_now, checkpoint_missing = torch.compile, _CHECKPOINT not in sys.modules
        if _COMPILER not in sys.modules:
            sys.modules[_COMPILER] = torch._dynamo = _Compiler(_COMPILER)
        if checkpoint_missing:
            sys.modules[_CHECKPOINT] = _checkpoint()
        torch.compile = partial(_compile_when_called, compile_now)
        outer, self._absent, self._thread = self._absent, _ABSENT[name], get_ident()
        try:
            yield
        finally:
            self._absent = outer
            torch.compile = compile_now
            if checkpoint_missing:
                del sys.modules[_CHECKPOINT]


class _LeanLoader:
    """A library's loader, run with the skipped modules hidden."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        with self._finder.importing(module.__name__):
            self._loader.exec_module(module)


class _LoadedModule:
    """Loader of a module that is already imported."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        with suppress(AttributeError):  # some modules forbid it, and importing has not changed theirs either
            module.__spec__ = self._spec


class _TraceRules(ModuleType):
    """Placeholder of `torch._dynamo.trace_rules`, whose cache a new process group clears: unloaded, it has none."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_compiler().trace_rules, name)

    @staticmethod
    def clear_lru_cache() -> None:
        """Does nothing: the cache is empty."""


class _Compiler(ModuleType):
    """Placeholder of `torch._dynamo`, replaced once an attribute is read that needs the compiler: until then nothing is
    compiled."""

    trace_rules = _TraceRules(f"{_COMPILER}.trace_rules")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # read by code that inspects every module
            raise AttributeError(name)
        return getattr(_compiler(), name)

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Does nothing: there is no compiler to stop."""

    @staticmethod
    def disable(function: Any = None, recursive: bool = True, **options: Any) -> Any:
        """`function`, excluded from compilation as soon as the compiler is loaded."""
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
    """The real `torch._dynamo`; loads it and removes the placeholder if necessary."""
    import torch

    if isinstance(sys.modules.get(_COMPILER), _Compiler):
        del sys.modules[_COMPILER], torch._dynamo
    import torch._dynamo

    return torch._dynamo


def _compile_when_called(compile_now: Callable[..., Any], function: Any = None, **options: Any) -> Any:
    """Does what `torch.compile` (`compile_now`) does, but loads the compiler at the first call of the function, when it
    is compiled anyway."""
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
    """Placeholder of `torch.distributed.checkpoint.default_planner`: loads it when a name in it is read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from torch.distributed.checkpoint import default_planner

        return getattr(default_planner, name)


def _checkpoint() -> ModuleType:
    """Placeholder of `torch.distributed.checkpoint` that holds only `default_planner`."""
    package = ModuleType(_CHECKPOINT)
    package.default_planner = _Planner(f"{_CHECKPOINT}.default_planner")  # type: ignore[attr-defined]
    return package
