"""Import hook of the commands that skips imports of megatron-core and DeepSpeed that no run uses: more than half of the
processor time of a start.

`install` is called by the `pretrain` command alone: `import pretrain` in any other program changes nothing. The hook
acts while megatron-core or DeepSpeed is imported for the first time, whoever imports it. During that import:

| Skipped | Instead |
|---|---|
| torch's compiler, which `torch.compile` of a function loads | loaded at the first call of such a function |
| `torch.distributed.tensor`, FSDP, symmetric memory | megatron-core's fallbacks for a torch without them |
| `torch.distributed.checkpoint`, and megatron-core's modules that import it or FSDP | loaded when a name is used |
| megatron-core 0.19's kernels in Triton, which torch's builds for CPUs lack | loaded when a name is used |
| MLflow, to which DeepSpeed's autotuner can report | DeepSpeed's fallback for a Python without it |

Releases import other names. One that a placeholder does not hold loads the module at once, and a library that cannot be
imported without the skipped modules is imported with them: then a start takes longer, and nothing else is different.

Once the import has finished, everything can be imported as usual. Only `torch._dynamo` stays a placeholder until an
attribute is read that needs the compiler: torch's optimizers import it at each step, to tell a compiler where to stop.
Modules that the program has already loaded are used as they are. Where Transformer Engine is installed there is no
hook: megatron-core imports it, and it imports the compiler and FSDP itself.
"""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_ABSENT: Mapping[str, tuple[str, ...]] = {
    "megatron.core": (
        "torch.distributed._tensor",
        "torch.distributed.tensor",
        "torch.distributed.fsdp",
        "torch.distributed._symmetric_memory",
    ),
    "deepspeed": ("mlflow",),
}
"""library -> modules that appear not to be installed while it is imported; it has a fallback for each"""
_DEFERRED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "megatron.core": {
        "torch.distributed.checkpoint": ("default_planner",),
        "megatron.core.dist_checkpointing.serialization": (
            *("load", "load_common_state_dict", "load_content_metadata", "load_plain_tensors", "load_sharded_metadata"),
            *("load_tensors_metadata", "remove_sharded_tensors", "save"),
            *("get_default_load_sharded_strategy", "get_default_save_sharded_strategy"),
        ),
        "megatron.core.distributed.fsdp.src.megatron_fsdp.utils": ("find_megatron_fsdp",),
        "megatron.core.transformer.moe.ops.paged_stash": (
            "GLOBAL_BLOCK_SIZE",
            "paged_stash_copy_kernel",
            "paged_stash_pop_kernel",
        ),
    },
}
"""library -> modules that have placeholders while it is imported, with their names that it only stores"""


class _Hidden(threading.local):
    """The modules that appear not to be installed to the thread that imports a library."""

    names: tuple[str, ...] = ()


_hidden = _Hidden()


def install() -> None:
    """Installs the hook in this process, unless it is installed already or Transformer Engine is present.

    Call it before megatron-core is imported.
    """
    if find_spec("transformer_engine") is None and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """First finder on `sys.meta_path`. It handles only the names in the table above."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name in _ABSENT:
            spec = PathFinder.find_spec(name, path)
            if spec is not None and spec.loader is not None:
                spec.loader = _LeanLoader(spec.loader)  # type: ignore[assignment]
            return spec
        if name in _hidden.names:
            raise ModuleNotFoundError(f"{name} is skipped while megatron-core or DeepSpeed is imported", name=name)
        package = name.rpartition(".")[0]
        if isinstance(sys.modules.get(package), _Placeholder):
            path = _load(package).__path__
            if name not in sys.modules:
                return PathFinder.find_spec(name, path)
        if path is not None and name in sys.modules:
            # Its package, which had a placeholder, has been loaded since this import began, and this module with it.
            return ModuleSpec(name, _LoadedModule(sys.modules[name]))  # type: ignore[arg-type]
        return None


class _LeanLoader:
    """A library's loader, run without the skipped modules, or with all of them if that fails."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        before = set(sys.modules)
        try:
            with _importing(module.__name__):
                self._loader.exec_module(module)
        except Exception:  # of whatever kind: a release that requires a module fails where it first uses it
            for name in set(sys.modules) - before:
                if name.startswith(f"{module.__name__}."):
                    del sys.modules[name]
            self._loader.exec_module(module)


@contextmanager
def _importing(library: str) -> Iterator[None]:
    """Skips the modules that `library` is imported without, inside the block."""
    import torch
    import torch.distributed

    with ExitStack() as afterwards:
        if _COMPILER not in sys.modules:
            sys.modules[_COMPILER] = torch._dynamo = _Compiler(_COMPILER)
        for name, stored in _DEFERRED.get(library, {}).items():
            if name not in sys.modules:
                sys.modules[name] = _Placeholder(name, stored)
                afterwards.callback(_remove_placeholder, name)
        compile_now = torch.compile
        afterwards.callback(setattr, torch, "compile", compile_now)
        torch.compile = partial(_compile_when_called, compile_now)
        afterwards.enter_context(_hiding(_ABSENT[library]))
        yield


@contextmanager
def _hiding(names: tuple[str, ...]) -> Iterator[None]:
    """Inside the block, these modules and no others appear not to be installed to this thread."""
    outer, _hidden.names = _hidden.names, names
    try:
        yield
    finally:
        _hidden.names = outer


def _remove_placeholder(name: str) -> None:
    if isinstance(sys.modules.get(name), _Placeholder):
        del sys.modules[name]


def _load(name: str) -> ModuleType:
    """The module itself; loads it, with everything that it imports, and removes its placeholder if necessary."""
    _remove_placeholder(name)
    with _hiding(()):
        return importlib.import_module(name)


class _Placeholder(ModuleType):
    """Placeholder of a module that holds the names that are only `stored`, until they are used. Any other loads the
    module."""

    def __init__(self, name: str, stored: Sequence[str]) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # which `from PACKAGE import NAME` reads: no reason to load the package
        vars(self).update({one: _Deferred(name, one) for one in stored})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # read by code that inspects every module
            raise AttributeError(name)
        return getattr(_load(self.__name__), name)


class _Deferred:
    """A module or a function in a module, which is loaded when an attribute is read or the function is called."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._itself(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._itself()(*args, **kwargs)

    def _itself(self) -> Any:
        return getattr(_load(self._module), self._name)


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
    with _hiding(()):
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
