"""What every section of a training config is: frozen once loaded, an unknown key is an error.

A choice with settings of its own is a tagged union: `name` says which class a section is read as, and that class has
just the keys that do something under the name. The name alone is short for a section with nothing but it.
"""

from collections.abc import Callable
from typing import Any, ClassVar, get_args

from pydantic import BaseModel

from data_pipeline.config import StrictSettings


class Section(StrictSettings):
    written_by_runs: ClassVar[tuple[str, ...]] = ()
    """keys that a run records in its own config.yaml, and that nobody gives by hand"""


def as_mapping(value: Any) -> Any:
    """A name alone as the mapping it is short for; anything else as it is."""
    return {"name": value} if isinstance(value, str) else value


def named(default: str | None = None) -> Callable[[Any], Any]:
    """Makes the value of a tagged union out of what may be written: a name alone, or a mapping, which means `default`
    where it has no name."""

    def complete(value: Any) -> Any:
        value = as_mapping(value)
        return {"name": default, **value} if default is not None and isinstance(value, dict) else value

    return complete


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The one section class in the annotation of a field, also of an optional one or a list; None for values and for
    choices."""
    found = _classes(annotation)
    return found[0] if len(found) == 1 else None


def variants_of(annotation: Any) -> dict[str, type[BaseModel]]:
    """The classes of a choice by their names; none for any other field."""
    found = _classes(annotation)
    return {kind.model_fields["name"].default: kind for kind in found} if len(found) > 1 else {}


def chosen(annotation: Any, value: Any) -> type[BaseModel] | None:
    """The class that `value`, written for a choice, is read as; None if it names none."""
    name = as_mapping(value).get("name") if isinstance(value, str | dict) else None
    return variants_of(annotation).get(name) if isinstance(name, str) else None


def _classes(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for argument in get_args(annotation) for kind in _classes(argument)]
