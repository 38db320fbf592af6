"""YAML + `extends` + dotted overrides -> a validated, frozen config.

YAML 1.2 (so `3e-4` is a number and `no` is a word). A file may say `extends: other.yaml`, relative to itself; mappings
merge, everything else replaces (`merge.py`). Files that come with the package go by name, such as gpt3/125m. Overrides
are `a.b.c=VALUE` with VALUE read as YAML. A name that is short for a mapping (`positions: relative`) is one where
something is added to it (`model.positions.num_buckets=16`).
"""

import io
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML

from pretrain.config.merge import merge
from pretrain.config.section import Section, as_mapping, section_of
from pretrain.config.sentence import sentence, shown
from pretrain.config.shipped import locate
from pretrain.config.yaml_text import check_readable, parse, read_text
from pretrain.errors import ConfigError
from pretrain.run_dir.paths import RunDir

Config = TypeVar("Config", bound=BaseModel)


def load(schema: type[Config], path: str | Path, overrides: list[str] | None = None) -> Config:
    """Reads `path`, a file or the name of one that comes with the package, applies `overrides`, validates. Raises
    ConfigError naming the key and its nearest match."""
    found = locate(path)
    tree = read(found, schema)
    _check_records(schema, tree, found, overrides or [])
    return validate(schema, tree, str(path), overrides)


def read_with(schema: type[BaseModel], path: str | Path, overrides: list[str]) -> dict[str, Any]:
    """The tree of a config of `schema` as it is written, with `overrides`, of which nothing was checked. Raises
    ConfigError for what is no YAML."""
    return _overridden(schema, read(locate(path), schema), overrides)


def validate(schema: type[Config], tree: dict[str, Any], origin: str, overrides: list[str] | None = None) -> Config:
    """Turns a plain tree, changed by `overrides`, into a config; `origin` names it in errors."""
    overrides = overrides or []
    try:
        return schema.model_validate(_overridden(schema, tree, overrides))
    except ValidationError as error:
        said = sentence(schema, error)
        if typed := _to_blame(schema, tree, overrides, error):
            named = any(f"'{key}" in said for key in typed)
            origin = "command line" if named else f"command line, {shown(' and '.join(typed))}"
        raise ConfigError(f"{origin}: {said}") from None


def read(path: Path, schema: type[BaseModel] | None = None, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tree of one YAML file with its `extends` chain merged in, as configs of `schema`."""
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
    if parent is None:
        return tree
    return merge(read(locate(str(parent), path.parent), schema, (*seen, path)), tree, schema)


def _check_records(schema: type[BaseModel], tree: dict[str, Any], path: Path, overrides: list[str]) -> None:
    """Raises ConfigError for records of a run that were made up: in `overrides`, or in a file that is no run's own
    config.yaml. `run.skipped=[...]` would leave out samples of which no step was bad."""
    for name, field in schema.model_fields.items():
        section, given = section_of(field.annotation), tree.get(name)
        for key in section.written_by_runs if section is not None and issubclass(section, Section) else ():
            dotted = f"{name}.{key}"
            by_hand = isinstance(given, dict) and given.get(key) and not RunDir(path.parent).events.is_file()
            if by_hand or any(one.partition("=")[0] == dotted for one in overrides):
                raise ConfigError(
                    f"{dotted} is written by the run to its own config.yaml, never by hand: leave it out, or start "
                    "from the config.yaml of the run that recorded it"
                )


def dump(config: BaseModel) -> str:
    """The config as YAML that `load` reads back to an equal one."""
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(config.model_dump(mode="json"), stream)
    return stream.getvalue()


def _overridden(schema: type[BaseModel], tree: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    given = [_parsed(override) for override in overrides]
    choices = {keys: value for keys, value in given if keys[-1] == "name" and isinstance(value, str)}
    for keys, value in choices.items():  # before others, so that what a command line gives for a choice stays
        tree = merge(tree, _set({}, keys, value), schema)
    for keys, value in given:
        tree = _set(tree, keys, value)
    return tree


def _to_blame(schema: type[BaseModel], tree: dict[str, Any], overrides: list[str], error: ValidationError) -> list[str]:
    """Keys of the overrides without which the first problem is gone; of those, if there are any, the ones that leave no
    new problem behind (as a required key that is given nowhere else does)."""
    first, *_ = problems = _problems(error)
    gone: dict[str, bool] = {}
    for number, override in enumerate(overrides):
        try:
            schema.model_validate(_overridden(schema, tree, overrides[:number] + overrides[number + 1 :]))
            left: list[Any] = []
        except ValidationError as other:
            left = _problems(other)
        if first not in left:
            gone[override.partition("=")[0]] = all(problem in problems for problem in left)
    return [key for key, clean in gone.items() if clean] or list(gone)


def _problems(error: ValidationError) -> list[Any]:
    return [(problem["type"], problem["loc"], problem["msg"]) for problem in error.errors()]


def _parsed(override: str) -> tuple[tuple[str, ...], Any]:
    """The parts of the key, and the value."""
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"'{shown(override)}' is not an override: write key=value, for example train.steps=100")
    check_readable(override, dotted)
    return tuple(dotted.split(".")), parse(text, f"override '{shown(override)}'")


def _set(tree: dict[str, Any], keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    first, *rest = keys
    if not rest:
        return {**tree, first: value}
    child = as_mapping(tree.get(first))
    return {**tree, first: _set(child if isinstance(child, dict) else {}, tuple(rest), value)}
