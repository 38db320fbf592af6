"""Base class of the sections of a training config: frozen once loaded, an unknown key is an error.

A choice with settings of its own is a tagged union: `name` says which class a section is read as, and that class has
just the keys that do something under the name. The name alone is short for a section with nothing but it. Some choices
are open: a package adds a class (`data_pipeline/common/plugins.py`), which is imported when a config has its name.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, Discriminator, GetCoreSchemaHandler, TypeAdapter, WrapValidator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from data_pipeline.common.plugins import Registry
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


def open_choice(registry: Registry[Any]) -> WrapValidator:
    """Makes a tagged union take the names of packages too. `registry` has the classes of the union itself built in,
    and these have a `plugin_group`."""

    def validate(value: Any, built_in: Callable[[Any], Any]) -> Any:
        tree = as_mapping(value)
        name = (
            getattr(value, "name", None)
            if isinstance(value, BaseModel)
            else tree.get("name")
            if isinstance(tree, dict)
            else None
        )
        if not isinstance(name, str) or name in registry.built_in or name not in registry:
            return built_in(value)
        return _with_plugin(registry[name], next(iter(registry.built_in.values()))).validate_python(tree)

    return WrapValidator(validate)


@lru_cache
def _with_plugin(kind: type[BaseModel], other: type[BaseModel]) -> TypeAdapter[Any]:
    """A union of a package's class with one of ours, so that errors name the choice."""
    return TypeAdapter(Annotated[kind | other, Discriminator("name")])  # type: ignore[arg-type]  # known as it runs


class NameIn:
    """In a field's annotation: the text is a name in the registry, or the texts are."""

    def __init__(self, registry: Mapping[str, Any]) -> None:
        self.registry = registry

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, named: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if any(name not in self.registry for name in ((named,) if isinstance(named, str) else named)):
            *names, last = (repr(one) for one in self.registry)
            expected = f"{', '.join(names)} or {last}"
            raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
        return named


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The one section class in the annotation of a field, also of an optional one or a list; None for values and for
    choices."""
    found = _classes(annotation)
    return found[0] if len(found) == 1 else None


def variants_of(annotation: Any) -> Mapping[str, type[BaseModel]]:
    """The classes of a choice by their names, of an open one those of packages too; none for any other field."""
    found = _classes(annotation)
    if len(found) < 2:
        return {}
    variants = {kind.model_fields["name"].default: kind for kind in found}
    group = getattr(found[0], "plugin_group", None)
    return variants if group is None else Registry(group, variants, BaseModel)


def chosen(annotation: Any, value: Any) -> type[BaseModel] | None:
    """The class that `value`, written for a choice, is read as; None if it names none."""
    name = as_mapping(value).get("name") if isinstance(value, str | dict) else None
    return variants_of(annotation).get(name) if isinstance(name, str) else None


def settings_of_others(annotation: Any, before: Any, after: Any) -> set[str]:
    """Keys of a section's tree `before` that other classes of a choice have, and the class that `after` names has not;
    none where both name the same, or `after` none."""
    kind = chosen(annotation, after)
    if kind is None or as_mapping(before).get("name") == as_mapping(after)["name"]:
        return set()
    others = {*_classes(annotation), chosen(annotation, before)} - {None}
    known = {key for other in others if other is not None for key in other.model_fields}
    return known - set(kind.model_fields)


def _classes(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for argument in get_args(annotation) for kind in _classes(argument)]
