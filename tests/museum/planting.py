"""A pytest plugin that plants a fault before any test is imported, in pytest's process and in the ranks that it starts:

MUSEUM_FAULT=tests.museum.data:order_of_the_first_epoch python -m pytest -p tests.museum.planting TEST
"""

import importlib
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers import ranks
from tests.museum.exhibit import Fault

VARIABLE = "MUSEUM_FAULT"


def name_of(fault: Fault) -> str:
    """`module:function`"""
    return f"{fault.__module__}:{fault.__name__}"


def pytest_configure(config: pytest.Config) -> None:
    module, _, function = os.environ[VARIABLE].partition(":")
    fault = getattr(importlib.import_module(module), function)
    run_ranks = ranks.run_ranks

    def planted(world: int, run: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[Any]:
        return run_ranks(world, _with_fault, fault, run, *arguments, **keywords)

    ranks.run_ranks = planted
    fault(pytest.MonkeyPatch())


def _with_fault(fault: Fault, run: Callable[..., Any], *arguments: Any) -> Any:
    fault(pytest.MonkeyPatch())  # a rank is a process of its own
    return run(*arguments)
