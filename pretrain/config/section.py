"""What every section of a training config is: frozen once loaded, an unknown key is an error."""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def refuse_idle(section: BaseModel, title: str, keys: Iterable[str], under: str = "name") -> None:
    """Raises ValueError if one of `keys`, which do nothing under what `under` of the section is, is not as it is by
    itself."""
    for key in keys:
        value, default = getattr(section, key), type(section).model_fields[key].default
        if value != default:
            raise ValueError(
                f"{title}.{key}={value} does nothing with {title}.{under}={getattr(section, under)}: leave it out"
            )
