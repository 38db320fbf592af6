"""What every section of a training config is: frozen once loaded, an unknown key is an error.

A choice with settings of its own is a tagged union: `name` says which class a section is read as, and that class has
just the keys that do something under the name. The name alone is short for a section with nothing but it.
"""

from collections.abc import Callable
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, model_validator

from data_pipeline.config import StrictSettings


class Section(StrictSettings):
    moved: ClassVar[dict[str, str]] = {}
    """keys that are read as a key of one of the section's choices: {"init_std": "init.std"}"""
    moved_idle: ClassVar[dict[str, Any]] = {}
    """of these, by which value they say what holds anyway where the choice has no such key"""
    written_by_runs: ClassVar[tuple[str, ...]] = ()
    """keys that a run records in its own config.yaml, and that nobody gives by hand"""

    @model_validator(mode="before")
    @classmethod
    def _read_moved(cls, values: Any) -> Any:
        if not isinstance(values, dict) or cls.moved.keys().isdisjoint(values):
            return values
        values = dict(values)
        for old in (old for old in cls.moved if old in values):
            cls._move(old, values)
        return values

    @classmethod
    def _move(cls, old: str, values: dict[str, Any]) -> None:
        section, value = cls.__name__.lower(), values.pop(old)
        choice, key = cls.moved[old].split(".")
        field = cls.model_fields[choice]
        given = values.get(choice, {})
        given = given.model_dump() if isinstance(given, BaseModel) else named(field.default.name)(given)
        kind = chosen(field.annotation, given)
        if kind is None:
            return  # the choice is wrong, of which validation has more to say
        if key not in kind.model_fields:
            if cls.moved_idle.get(old, ...) == value:
                return
            raise ValueError(
                f"{section}.{old}={value} does nothing with {section}.{choice}={given['name']}: leave it out"
            )
        if given.get(key, value) != value:
            raise ValueError(
                f"{section}.{old}={value} and {section}.{choice}.{key}={given[key]} are one setting: leave one out"
            )
        values[choice] = {**given, key: value}


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
