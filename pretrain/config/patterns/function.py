"""A pattern of the user's own: a Python function that says who sees whom."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from pretrain.config.patterns.base import MaskRule, PatternSettings
from pretrain.errors import ConfigError

_trusted: set[str] = set()  # functions that a config of the user's own names
_trusts_all = False
_recorded = ContextVar("recorded", default=False)
Seen = np.ndarray[Any, np.dtype[np.bool_]]
_CHECKED = 1024  # positions that a function of integers is tried on; on all, where its blocks are made
_ROWS = 64  # queries that it is asked of at once


@contextmanager
def recorded_config() -> Iterator[None]:
    """Inside, configs that are read are what a run has recorded, and no function that they name is called: whoever made
    the run chose it."""
    token = _recorded.set(True)
    try:
        yield
    finally:
        _recorded.reset(token)


def trust_code() -> None:
    """From now on, functions that a run's record names are called too (`--trust-code`)."""
    global _trusts_all
    _trusts_all = True


class Function(PatternSettings):
    """`function(query, key)`, of positions from 0 on: whether the query sees the key. It may take arrays; one that
    takes integers alone is asked of one pair after the other, which is slow."""

    name: Literal["function"] = "function"
    function: str = Field(description="mask function: package.module:name or path/to/file.py:name")

    @model_validator(mode="after")
    def _is_trusted(self) -> "Function":
        if not _recorded.get():
            _trusted.add(self.function)
        return self

    def head(self, layer: int, head: int, length: int | None) -> MaskRule:
        return self

    def attends(self, query: Any, key: Any) -> Any:
        if not (_trusts_all or self.function in _trusted):
            raise ConfigError(untrusted(self.function))
        function, _ = _function(self.function)
        try:
            return function(query, key)
        except Exception as error:  # whatever a user's function raises
            raise ValueError(_failed(self.function, error)) from error

    def mean_keys(self, length: int, causal: bool) -> float:
        try:
            total = sum(int(rows.sum()) for rows in self.rows(length, causal))
        except ValueError as error:  # beyond the positions that were checked
            raise ConfigError(f"model.attention.pattern (function): {error}") from None
        return total / length

    def rows(self, length: int, causal: bool) -> Iterator[Seen]:
        """Bool [some queries, length] each: who sees whom, of all queries in order. Raises ValueError where a query has
        no key, or, if `causal`, sees what comes later."""
        keys = np.arange(length)
        for first in range(0, length, _ROWS):
            queries = np.arange(first, min(first + _ROWS, length))[:, None]
            seen = np.broadcast_to(self.attends(queries, keys), (len(queries), length))
            if causal and (ahead := np.argwhere(seen & (keys > queries))).size:
                row, key = ahead[0]
                raise ValueError(
                    f"{self.function} looks ahead: it lets position {first + row} see position {key}; in a decoder it "
                    "has to say no where key > query"
                )
            if (without := np.flatnonzero(~seen.any(1))).size:
                raise ValueError(
                    f"{self.function} leaves position {first + without[0]} without a key: let each see itself, at least"
                )
            yield seen

    def check(self, length: int, encoder: bool, decoder: bool) -> None:
        if _recorded.get() and not _trusts_all:
            return  # before it is called, `sees` refuses it
        _, takes_arrays = _function(self.function)
        for _ in self.rows(length if takes_arrays else min(length, _CHECKED), decoder):
            pass


@lru_cache
def _function(name: str) -> tuple[Callable[[Any, Any], Any], bool]:
    """The mask function, taking integers or numpy arrays that broadcast; and whether it takes arrays without help."""
    path, _, attribute = name.rpartition(":")
    try:
        function = getattr(_file(Path(path)), attribute) if path.endswith(".py") else resolve_name(name)
    except Exception as error:  # whatever a user's file raises
        raise ValueError(
            f"function={name} cannot be read ({error}): write package.module:name or path/to/file.py:name"
        ) from error
    if not callable(function):
        raise ValueError(f"function={name} is no function but {type(function).__name__}: name one in place of it")
    one_by_one = np.vectorize(function, otypes=[bool])
    query, key = np.arange(32)[:, None], np.arange(32)
    try:
        expected = one_by_one(query, key)
    except Exception as error:
        raise ValueError(_failed(name, error)) from error
    try:
        mask = np.broadcast_to(function(query, key), (32, 32))
        takes_arrays = mask.dtype == bool and np.array_equal(mask, expected)
    except Exception:  # "the truth value of an array is ambiguous", say
        takes_arrays = False
    return (function if takes_arrays else one_by_one), takes_arrays


def untrusted(name: str) -> str:
    """Why the function of a run's record is not called, in a sentence."""
    return (
        f"the run's config names code, model.attention.pattern: {name}, which would be run here: read it, and give "
        "--trust-code"
    )


def _failed(name: str, error: Exception) -> str:
    return (
        f"{name} fails ({type(error).__name__}: {error}): it is called with the positions of a query and a key, from 0 "
        "on, and says whether the query sees the key"
    )


def _file(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path.expanduser())
    assert spec is not None, "it ends in .py"
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
