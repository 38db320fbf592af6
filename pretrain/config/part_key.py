"""Keys of `model` for parts that a model may lack. No torch."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from operator import eq
from typing import Any, ClassVar, Generic, TypeVar, cast

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
    """what `pretrain keys` says of it"""
    follows: str
    """the key of `model` behind which it is listed"""
    absent: ClassVar[Any] = None
    """its value in a model without the part"""

    def of(self, model: Section) -> Settings | None:
        """The settings of the part in a model that has it."""
        value = getattr(model, self.name)
        return None if value == self.absent else cast("Settings", value)

    def field(self, is_left_out: Callable[[Any], bool] | None) -> tuple[Any, Any]:
        """Its type in the section, and what is said of it. `is_left_out`: whether a value is not written out."""
        return self.settings | None, Field(None, description=self.description, exclude_if=is_left_out)


class CountKey(PartKey[int]):
    """A number of something, of which models without the part have one."""

    absent = 1

    def field(self, is_left_out: Callable[[Any], bool] | None) -> tuple[Any, Any]:
        """See `PartKey`."""
        return int, Field(1, gt=0, description=self.description, exclude_if=is_left_out)


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
        fields[key.name] = key.field(partial(eq, key.absent) if key in of_packages else None)
        fields = {one: fields[one] for one in order}
    return create_model(name, __base__=Section, __module__=own.__module__, __doc__=own.__doc__, **fields)
