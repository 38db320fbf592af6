"""The parts of an exhibit: a published fault, the patch that plants it here, and the tool that finds it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

Fault = Callable[[pytest.MonkeyPatch], None]
"""plants a fault in this process, before an engine is built"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a tool reports of a fault, as measured."""

    quantity: str
    """of `verify` or `compare`; of a test, its name"""
    step: int | None = None
    parameter: str | None = None
    """the parameter that departs most"""
    parameters: int = 0
    """number of parameters that depart"""
    stages: list[int] = field(default_factory=list)
    """pipeline stages on which it was seen"""
    report: str
    """the tool's own sentence"""


class Finder(Protocol):
    """A tool, the config on which the fault shows, and what the tool is to say of it."""

    @property
    def tool(self) -> str:
        """Name of the tool, as the page shows it."""
        ...

    @property
    def config(self) -> str:
        """Config and layout on which the fault shows, as the page shows them."""
        ...

    def examine(self, fault: Fault, folder: Path) -> list[Finding]:
        """Everything that the tool reports with `fault` planted in every process, its reference's too."""
        ...

    def expected(self, findings: list[Finding]) -> Finding | None:
        """The finding that names the fault where it is; None if there is none."""
        ...


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A published silent fault and how it fares here."""

    group: str
    title: str
    """the fault in one sentence"""
    threads: tuple[str, ...]
    """`owner/name#number` of issues and pull requests"""
    effect: str
    """what was published of its effect"""
    plant: Fault
    finder: Finder
    unseen: str | None = None
    """why `verify` does not see it; None: it does, or is not asked"""

    @property
    def name(self) -> str:
        return self.plant.__name__


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A published silent fault that cannot be planted here yet."""

    title: str
    threads: tuple[str, ...]
    effect: str
    reason: str


def as_config(sections: dict[str, Any]) -> str:
    """`sections` as `key=value`, for the page."""
    flat: list[str] = []

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                add(f"{prefix}.{key}", inner)
        else:
            flat.append(f"{prefix}={value}")

    for section, value in sections.items():
        add(section, value)
    return ", ".join(flat)
