"""Keys of `model` for parts that a model may lack. No torch."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from pydantic import Field, create_model

from data_pipeline.errors import DataError
from pretrain.config.section import Section

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class PartKey(Generic[Settings]):
    """A key that is absent where the model has no such part."""

    name: str
    settings: type[Settings]
    """a section, or a type of plain values"""
    description: str
    """description of it in `pretrain keys`"""
    follows: str
    """the key of `model` behind which it is listed, and behind other parts that follow the same one"""
    default: Any = None
    """its value in a model without the part"""

    def of(self, model: Section) -> Settings | None:
        """The settings of the part in a model that has it."""
        value = getattr(model, self.name)
        return None if self.is_default(value) else cast(Settings, value)

    def is_default(self, value: Any) -> bool:
        """Whether it is that of a model without the part."""
        return bool(value == self.default)


def with_keys(
    name: str, own: type[Section], keys: Iterable[PartKey[Any]], of_packages: Collection[PartKey[Any]] = ()
) -> type[Section]:
    """A section of that name with the keys of `own`, and others, each where its `follows` says. Keys
    `of_packages` are written out where they are set alone, so that a config without them is read without the package.
    Raises ValueError where there is none of that name, and DataError for a name that is taken."""
    fields: dict[str, Any] = {key: (field.annotation, field) for key, field in own.model_fields.items()}
    places = {key: [key] for key in fields}
    """each key, and the list of those that stand together behind one of `own`"""
    for key in (*keys, *of_packages):
        if key.name in fields:
            raise DataError(f"A package declares the part {key.name!r}, and model.{key.name} is a key: uninstall it.")
        if key.follows not in places:
            raise ValueError(f"model.{key.name} follows {key.follows!r}, which is no key")
        places[key.name] = places[key.follows]
        places[key.name].append(key.name)
        left_out = key.is_default if key in of_packages else None
        field = Field(key.default, description=key.description, exclude_if=left_out)
        fields[key.name] = (key.settings | None if key.default is None else key.settings), field
    ordered = {name: fields[name] for key in own.model_fields for name in places[key]}
    return create_model(name, __base__=Section, __module__=own.__module__, __doc__=own.__doc__, **ordered)
