"""Compares the installed versions of the engines' libraries with the ranges in pyproject.toml, which were tried.

pip keeps to them; a cluster's own torch need not (docs/versions.md).
"""

import tomllib
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

_ENGINES = ("torch", "megatron-core", "deepspeed", "transformers")
"""libraries whose internals are used"""
_PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def warnings_of_versions() -> tuple[str, ...]:
    """A sentence if versions were not tried, or none."""
    return untried(_requirements(), version)


def untried(requirements: Iterable[str], installed: Callable[[str], str]) -> tuple[str, ...]:
    """`requirements` as in pyproject.toml; `installed` gives a library's version, or raises PackageNotFoundError."""
    found = []
    for requirement in map(Requirement, requirements):
        if requirement.name in _ENGINES and requirement.marker is None:
            try:
                here = installed(requirement.name)
            except PackageNotFoundError:
                continue  # its import says so
            if not requirement.specifier.contains(here, prereleases=True):
                found.append(f"{requirement.name} {here} ({requirement.specifier})")
    if not found:
        return ()
    return (
        f"this release was not tried with {', '.join(found)}: run `pretrain verify` on this config and layout before "
        "you rely on its numbers",
    )


def _requirements() -> list[str]:
    """A checkout's own; else those of the installed package."""
    if _PROJECT.is_file():
        dependencies: list[str] = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
        return dependencies
    return requires("pretrain") or []
