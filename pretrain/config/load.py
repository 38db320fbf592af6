"""YAML + `extends` + dotted overrides -> a validated, frozen config.

YAML 1.2 (so `3e-4` is a number and `no` is a word). A file may say `extends: other.yaml`, relative to itself; mappings
merge, everything else replaces. Overrides are `a.b.c=VALUE` with VALUE read as YAML.
"""

import io
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pretrain.config.sentence import sentence
from pretrain.errors import ConfigError

Config = TypeVar("Config", bound=BaseModel)


def load(schema: type[Config], path: str | Path, overrides: list[str] | None = None) -> Config:
    """Reads `path`, applies `overrides`, validates. Raises ConfigError naming the key and its nearest match."""
    return validate(schema, read(Path(path)), str(path), overrides)


def validate(schema: type[Config], tree: dict[str, Any], origin: str, overrides: list[str] | None = None) -> Config:
    """Turns a plain tree, changed by `overrides`, into a config; `origin` names it in errors."""
    for override in overrides or []:
        _override(tree, override)
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {sentence(schema, error)}") from None


def read(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tree of one YAML file with its `extends` chain merged in."""
    path = path.resolve()
    if path in seen:
        raise ConfigError(f"{path}: extends itself through {' -> '.join(p.name for p in seen)}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a config file ({error})") from None
    tree = _parse(text, str(path))
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a config is a mapping of keys, found {type(tree).__name__}")
    parent = tree.pop("extends", None)
    return tree if parent is None else _merge(read(path.parent / str(parent), (*seen, path)), tree)


def dump(config: BaseModel) -> str:
    """The config as YAML that `load` reads back to an equal one."""
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(config.model_dump(mode="json"), stream)
    return stream.getvalue()


def _parse(text: str, origin: str) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{origin}{where}: not valid YAML ({getattr(error, 'problem', error)})") from None


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _override(tree: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"'{override}' is not an override: write key=value, for example train.steps=100")
    *parents, last = dotted.split(".")
    for name in parents:
        child = tree.setdefault(name, {})
        if not isinstance(child, dict):
            child = tree[name] = {}
        tree = child
    tree[last] = _parse(text, f"override '{override}'")
