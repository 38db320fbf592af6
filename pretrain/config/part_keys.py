"""The keys of `model` for all parts: ours, and those of installed packages (`pretrain.part_keys`)."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from data_pipeline.common.plugins import Registry
from data_pipeline.errors import DataError
from pretrain.config import experts, latent_attention, mtp, mup
from pretrain.config.classics import declared
from pretrain.config.part_key import PartKey
from pretrain.config.section import Section

Settings = TypeVar("Settings", bound=Section)

_ROWS: tuple[PartKey[Any], ...] = (
    experts.KEY,
    latent_attention.KEY,
    mtp.KEY,
    mup.KEY,
)
_GROUP = "pretrain.part_keys"
_LISTED = ("source_encoder",)
"""keys that are listed before others that follow the same one"""
_REGISTRY: Registry[PartKey[Any]] = Registry(
    _GROUP, {key.name: key for key in _ROWS}, PartKey, declared(_GROUP), _LISTED
)
KEYS: Mapping[str, PartKey[Any]] = dict(_REGISTRY.built_in)
"""keys of our parts, by name"""


def _package_keys() -> Iterator[tuple[str, PartKey[Any]]]:
    for name in _REGISTRY.plugins:
        if _REGISTRY[name].name != name:
            raise DataError(
                f"{name!r} in {_REGISTRY.group} is the key model.{_REGISTRY[name].name}: an entry point has the name "
                "of its key. Repair or uninstall its package."
            )
        yield name, _REGISTRY[name]


KEYS_OF_PACKAGES: Mapping[str, PartKey[Any]] = dict(_package_keys())
"""keys of the parts that installed packages add, by name"""
KEYS_APART: Mapping[str, PartKey[Any]] = {**{name: KEYS[name] for name in _REGISTRY.apart}, **KEYS_OF_PACKAGES}
"""keys of the parts whose specs, modules and work are found by that name: of `pretrain/classics`, and of packages"""


def keys_of_kind(kind: type[Settings]) -> Iterator[PartKey[Settings]]:
    """Keys of parts apart whose sections are of this class."""
    return (key for key in KEYS_APART.values() if isinstance(key.settings, type) and issubclass(key.settings, kind))


if TYPE_CHECKING:

    class PartKeys(Section):
        """Types of our parts' keys, for a type checker."""

        experts: experts.Experts | None
        latent_attention: latent_attention.LatentAttention | None
        mtp: mtp.Mtp | None
        mup: mup.Mup | None

else:
    PartKeys = Section
