"""Keys of `model` for parts that a model may lack. No torch."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from pydantic import Field, create_model

from data_pipeline.errors import DataError
from pretrain.config.section import Section

Settings = TypeVar("Settings", bound=Section)


@dataclass(frozen=True)
class PartKey(Generic[Settings]):
    """A key that is absent where the model has no such part."""

    name: str
    settings: type[Settings]
    description: str
    """what `pretrain keys` says of it"""
    follows: str
    """the key of `model` behind which it is listed"""

    def of(self, model: Section) -> Settings | None:
        """The settings of the part in a model that has it."""
        return cast("Settings | None", getattr(model, self.name))


def with_keys(
    name: str, own: type[Section], keys: Iterable[PartKey[Any]], of_packages: Collection[PartKey[Any]] = ()
) -> type[Section]:
    """A section of that name with the keys of `own`, and others, each behind the one that it `follows`. Keys
    `of_packages` are written out where they are set alone, so that a config without them is read without the package.
    Raises ValueError where there is none of that name, and DataError for a name that is taken."""
    fields: dict[str, Any] = {key: (field.annotation, field) for key, field in own.model_fields.items()}
    for key in (*keys, *of_packages):
        if key.name in fields:
            raise DataError(f"A package declares the part {key.name!r}, and model.{key.name} is a key: uninstall it.")
        order = list(fields)
        order.insert(order.index(key.follows) + 1, key.name)
        left_out = _is_none if key in of_packages else None
        fields[key.name] = key.settings | None, Field(None, description=key.description, exclude_if=left_out)
        fields = {one: fields[one] for one in order}
    return create_model(name, __base__=Section, __module__=own.__module__, __doc__=own.__doc__, **fields)


def _is_none(value: Any) -> bool:
    return value is None
