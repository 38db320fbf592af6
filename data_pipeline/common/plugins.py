"""Parts that installed packages add to ours: found by entry points, imported when their names are first used.

A package declares a part under the group of its kind and a name:

    [project.entry-points."pretrain.optimizers"]
    lion = "their_package.lion:LionSettings"

Configs, datasets and checkpoints choose among such names; none of them names code. Built-in parts are rows of the
registries themselves, or entry points of our own, and no package can take one of their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, cast

from data_pipeline.errors import DataError

Part = TypeVar("Part")


class Registry(Mapping[str, Part]):
    """Parts of one kind by name: the built-in ones, then those of installed packages, each imported at its first use.

    Looking up a built-in name does not read installed packages. Raises DataError when a package declares a name that is
    taken, cannot be imported, or declares something that is neither an instance nor a subclass of `base`.
    """

    def __init__(
        self,
        group: str,
        built_in: Mapping[str, Part],
        base: type = object,
        apart: Mapping[str, EntryPoint] | None = None,
        order: Sequence[str] = (),
    ) -> None:
        """`apart`: built-in parts that are imported at their first use, too. `order`: in which built-in parts are
        listed; others follow."""
        self.group, self._base, self.apart = group, base, apart or {}
        self.built_in = _BuiltIn(built_in, self.apart, base, order) if self.apart else built_in

    @property
    def plugins(self) -> Mapping[str, EntryPoint]:
        """Entry points of other packages by name, not imported."""
        entries = _declared(self.group)
        for name in entries.keys() & self.built_in.keys():
            raise DataError(
                f"The package {_package(entries[name])} declares {name!r} in {self.group}, which is the name of a "
                "built-in part: rename or uninstall it."
            )
        return entries

    def __getitem__(self, name: str) -> Part:
        if name in self.built_in:
            return self.built_in[name]
        return cast(Part, _load(self.plugins[name], self._base))

    def require(self, name: str) -> Part:
        """The part of that name. Raises DataError when there is none."""
        if name not in self:
            raise DataError(f"No installed package declares {name!r} in {self.group}: install the one that does.")
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.plugins

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from self.plugins

    def __len__(self) -> int:
        return len(self.built_in) + len(self.plugins)


class _BuiltIn(Mapping[str, Part]):
    """Rows, and parts that are imported at their first use, in an order of both."""

    def __init__(
        self, rows: Mapping[str, Part], apart: Mapping[str, EntryPoint], base: type, order: Sequence[str]
    ) -> None:
        self._rows, self._apart, self._base = rows, apart, base
        places = {name: place for place, name in enumerate(order)}
        self._names = sorted([*rows, *apart], key=lambda name: places.get(name, len(places)))

    def __getitem__(self, name: str) -> Part:
        return self._rows[name] if name in self._rows else cast(Part, _load(self._apart[name], self._base))

    def __contains__(self, name: object) -> bool:
        return name in self._rows or name in self._apart

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@cache
def _declared(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group, sorted by name."""
    by_name: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, _package(entry))):
        first = by_name.setdefault(entry.name, entry)
        if first.value != entry.value:
            raise DataError(
                f"The packages {_package(first)} and {_package(entry)} both declare {entry.name!r} in {group}: "
                "uninstall one of them."
            )
    return by_name


@cache
def _load(entry: EntryPoint, base: type) -> Any:
    where = f"{entry.name!r} in {entry.group}, which the package {_package(entry)} declares as {entry.value},"
    try:
        part = entry.load()
    except Exception as error:  # whatever the module raises as it is imported
        raise DataError(
            f"{where} cannot be imported ({type(error).__name__}: {error}): repair or uninstall it."
        ) from error
    if not (issubclass(part, base) if isinstance(part, type) else isinstance(part, base)):
        raise DataError(f"{where} is no {base.__module__}.{base.__qualname__}: see docs/extend.md.")
    return part


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "of an unknown name"
