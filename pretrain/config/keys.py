"""Every key of a config, as its sections declare it: type, bounds, choices, default, meaning.

Elements of a list are `data.sources[].path`. Of a choice with settings of its own, `name` is a key like any other, and
keys that not every name has say for which they are.
"""

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from data_pipeline.common.suggestions import close_matches, did_you_mean
from data_pipeline.config import expand_user
from pretrain.config.aliases import called, plainly
from pretrain.config.section import NameIn, section_of, variants_of
from pretrain.errors import ConfigError

Kinds = Mapping[type[BaseModel], Mapping[str, type[BaseModel]]]
"""subclasses of a base class of sections that a config may choose, by name, where there is no tagged union"""
_PLAIN: dict[type, str] = {
    **{bool: "true or false", int: "whole number", float: "number", str: "text"},
    **{Path: "path", date: "date", dict: "mapping"},
}
_CHOICE = "choice"
_BOUNDS = {Gt: ("gt", "above"), Ge: ("ge", "at least"), Lt: ("lt", "below"), Le: ("le", "at most")}


@dataclass(frozen=True, kw_only=True)
class Key:
    dotted: str
    type: str
    """in words, with its bounds"""
    required: bool
    default: Any
    """plain JSON value; None also where there is no default"""
    choices: tuple[Any, ...]
    """the values that it may have, if they can be listed"""
    only: tuple[str, ...]
    """names of the choice that it is a setting of; none: whatever is chosen"""
    description: str
    of: str = ""
    """the key of that choice: `optimizer.name`"""


def keys(schema: type[BaseModel], kinds: Kinds | None = None) -> list[Key]:
    """Keys of a config that is read as `schema`, in the order of its sections."""
    return list(_keys(schema, "", kinds or {}))


def matching_keys(every: Sequence[Key], pattern: str) -> list[Key]:
    """Keys whose name, ours or another system's, matches a part of a name or a pattern with * and ?, and those that can
    have the pattern as their value, or exist only with it; if there is none, those with all of its words in their
    description. Raises ConfigError with similar names if no key matches."""
    written = plainly(pattern)
    glob = written if any(mark in written for mark in "*?") else f"*{written}*"
    literal = glob.replace("[", "[[]")  # of a list's elements
    aliased = called(pattern)
    by_name = [
        key
        for key in every
        if key.dotted in aliased or fnmatch.fnmatchcase(key.dotted, literal) or pattern in (*key.choices, *key.only)
    ]
    words = set(_split_words(pattern))
    matches = by_name or [key for key in every if words and words <= set(_split_words(key.description))]
    if not matches:
        by_last = {key.dotted.rpartition(".")[2]: key.dotted for key in every}
        last = pattern.rpartition(".")[2]
        similar = [by_last[name] for name in close_matches(last, by_last, most=3)]
        hint = did_you_mean(similar, "`pretrain keys` lists all")
        raise ConfigError(f"no key matches '{pattern}': {hint}")
    return matches


def _split_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _keys(section: type[BaseModel], prefix: str, kinds: Kinds) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        yield from _field_keys(prefix + (field.alias or name), field, kinds)


def _field_keys(dotted: str, field: FieldInfo, kinds: Kinds) -> Iterator[Key]:
    inner = section_of(field.annotation)
    variants = variants_of(field.annotation) or (kinds.get(inner, {}) if inner is not None else {})
    listed = any(get_origin(one) in (list, tuple) for one in _alternatives(field.annotation))
    below = f"{dotted}[]." if listed else f"{dotted}."
    own = inner is None and not variants  # a plain value
    if own or field.description:
        yield _key(dotted, field, () if own else ("list of sections" if listed else "section",))
    if variants:
        default = _usual_name(field)
        short = "a name alone" if listed else f"{dotted}=NAME"
        said = f"which kind; {short} is short for it"
        yield Key(
            dotted=f"{below}name",
            type=_CHOICE,
            required=default is None,
            default=default,
            choices=tuple(variants),
            only=(),
            description=said,
        )
        yield from _variant_keys(below, variants, kinds)
    elif inner is not None:
        yield from _keys(inner, below, kinds)


def _usual_name(field: FieldInfo) -> Any:
    """Default name of a choice, which `section.named` fills in where a config names none. None if it has to be
    named."""
    fill_in = [cast("Callable[[Any], Any]", one.func) for one in field.metadata if isinstance(one, BeforeValidator)]
    return fill_in[0]({}).get("name") if fill_in else None


def _variant_keys(prefix: str, variants: Mapping[str, type[BaseModel]], kinds: Kinds) -> Iterator[Key]:
    """A key for each setting that is declared differently, with the names that have it so. One of a choice within keeps
    the names of that choice, which is there under some of these names only, and says so."""
    declared = [
        (name, key)
        for name, kind in variants.items()
        for key in _keys(kind, prefix, kinds)
        if key.dotted != f"{prefix}name"
    ]
    for number, (_, key) in enumerate(declared):
        names = tuple(name for name, other in declared if other == key)
        if key not in [other for _, other in declared[:number]]:
            everywhere = len(names) == len(variants)
            yield key if everywhere or key.only else replace(key, only=names, of=f"{prefix}name")


def _key(dotted: str, field: FieldInfo, said: tuple[str, ...]) -> Key:
    default = None if field.is_required() else _plain(field.get_default(call_default_factory=True))
    open_names = [tuple(one.registry) for one in field.metadata if isinstance(one, NameIn)]
    words = [*said] or ([_CHOICE] if open_names else [_words(field.annotation, field.metadata)])
    for kind, (attribute, word) in _BOUNDS.items():
        words += [f"{word} {getattr(one, attribute):,}" for one in field.metadata if isinstance(one, kind)]
    choices = tuple(value for one in _alternatives(field.annotation) for value in _literals(one))
    choices = open_names[0] if open_names else choices
    return Key(
        dotted=dotted,
        type=" ".join(words),
        required=field.is_required(),
        default=default,
        choices=choices,
        only=(),
        description=field.description or "",
    )


def _words(annotation: Any, metadata: list[Any]) -> str:
    """The type of a value, for people."""
    if any(isinstance(one, AfterValidator) and one.func is expand_user for one in metadata):
        return "path"
    types = []
    for one in _alternatives(annotation):
        origin, inner = get_origin(one), [kind for kind in get_args(one) if kind is not Ellipsis]
        if origin is Annotated:
            types.append(_words(inner[0], inner[1:]))
        elif origin in (list, tuple):
            types.append(f"list of {' and '.join(dict.fromkeys(_words(kind, []) for kind in inner))}")
        else:
            types.append(_CHOICE if origin is Literal else _PLAIN[origin or one])
    return " or ".join(types)


def _alternatives(annotation: Any) -> list[Any]:
    """Types of a union, without None."""
    union = get_origin(annotation) in (Union, UnionType)
    return [one for one in (get_args(annotation) if union else (annotation,)) if one is not NoneType]


def _literals(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (list, Annotated):
        return _literals(get_args(annotation)[0])
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _plain(value: Any) -> Any:
    """The value as plain JSON."""
    if value is PydanticUndefined:
        return None
    if isinstance(value, BaseModel):
        return getattr(value, "name", None)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
