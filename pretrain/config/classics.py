"""Old and rare families: each is a folder of `pretrain/classics`, which nothing imports. It declares its parts as an
installed package does (`docs/extend.md`), in `DECLARES` of its `__init__.py`: by group and name, the module in the
folder and the object in that. No torch."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "classics"


def declared(group: str) -> dict[str, EntryPoint]:
    """The parts of one kind that all folders declare, by name."""
    return {
        name: EntryPoint(name, f"{package}.{value}", group)
        for package, groups in _folders().items()
        for name, value in groups.get(group, {}).items()
    }


@cache
def _folders() -> dict[str, Mapping[str, Mapping[str, str]]]:
    names = sorted(path.parent.name for path in _FOLDER.glob("*/__init__.py"))
    packages = (f"pretrain.classics.{name}" for name in names)
    return {package: import_module(package).DECLARES for package in packages}
