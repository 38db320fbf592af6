"""YAML + `extends` + dotted overrides -> a validated, frozen config.

YAML 1.2 (so `3e-4` is a number and `no` is a word). A file may say `extends: other.yaml`, relative to itself; mappings
merge, everything else replaces. Overrides are `a.b.c=VALUE` with VALUE read as YAML. A name that is short for a mapping
(`positions: relative`) is one where something is added to it (`model.positions.buckets=16`).
"""

import io
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML

from pretrain.config.section import Section, as_mapping, section_of
from pretrain.config.sentence import sentence, shown
from pretrain.config.yaml_text import parse, read_text
from pretrain.errors import ConfigError

Config = TypeVar("Config", bound=BaseModel)


def load(schema: type[Config], path: str | Path, overrides: list[str] | None = None) -> Config:
    """Reads `path`, applies `overrides`, validates. Raises ConfigError naming the key and its nearest match."""
    return validate(schema, read(Path(path), schema), str(path), overrides)


def validate(schema: type[Config], tree: dict[str, Any], origin: str, overrides: list[str] | None = None) -> Config:
    """Turns a plain tree, changed by `overrides`, into a config; `origin` names it in errors."""
    for override in overrides or []:
        tree = _override(schema, tree, override)
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {sentence(schema, error)}") from None


def read(path: Path, schema: type[BaseModel] = BaseModel, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tree of one YAML file, of a `schema` if it is known, with its `extends` chain merged in."""
    try:
        path = path.resolve()
    except (ValueError, OSError, RuntimeError) as error:  # a NUL in the name, a circle of links
        raise ConfigError(f"{path}: no such config file ({error})") from None
    if path in seen:
        raise ConfigError(f"{path}: extends itself through {' -> '.join(p.name for p in seen)}")
    tree = parse(read_text(path), str(path))
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a config is a mapping of keys, found {type(tree).__name__}")
    parent = tree.pop("extends", None)
    return tree if parent is None else _merge(schema, read(path.parent / str(parent), schema, (*seen, path)), tree)


def dump(config: BaseModel) -> str:
    """The config as YAML that `load` reads back to an equal one."""
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(config.model_dump(mode="json"), stream)
    return stream.getvalue()


def _merge(schema: type[BaseModel], base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = _without_rivals(schema, base, over)
    for key, value in over.items():
        before = as_mapping(merged.get(key))
        both = isinstance(value, dict) and isinstance(before, dict)
        inner = section_of(schema.model_fields[key].annotation) if key in schema.model_fields else None
        merged[key] = _merge(inner or BaseModel, before, value) if both else value
    return merged


def _override(schema: type[BaseModel], tree: dict[str, Any], override: str) -> dict[str, Any]:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"'{shown(override)}' is not an override: write key=value, for example train.steps=100")
    keys, value = dotted.split("."), parse(text, f"override '{shown(override)}'")
    return _set(_without_rivals(schema, tree, _set({}, keys, value)), keys, value)


def _set(tree: dict[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    first, *rest = keys
    if not rest:
        return {**tree, first: value}
    child = as_mapping(tree.get(first))
    return {**tree, first: _set(child if isinstance(child, dict) else {}, rest, value)}


def _without_rivals(schema: type[BaseModel], base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """A copy of `base` without settings that `over` has under another key, `moved` or not: the later one counts."""
    kept = dict(base)
    for old, new in schema.moved.items() if issubclass(schema, Section) else ():
        choice, key = new.split(".")
        before, now = kept.get(choice), over.get(choice)
        if old in over and isinstance(before, dict):
            kept[choice] = {name: value for name, value in before.items() if name != key}
        if isinstance(now, dict) and key in now:
            kept.pop(old, None)
    for name, field in schema.model_fields.items():
        inner, before, now = section_of(field.annotation), kept.get(name), over.get(name)
        if inner is not None and isinstance(before, dict) and isinstance(now, dict):
            kept[name] = _without_rivals(inner, before, now)
    return kept
