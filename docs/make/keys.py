"""The references of keys: every section of a config as it is declared, with types, defaults and descriptions."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel

from data_pipeline.build.config import BuildConfig
from data_pipeline.steps.registry import STEPS
from pretrain.config.run_config import RunConfig
from pretrain.config.section import section_of, variants_of

_WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}


class Key(NamedTuple):
    dotted: str
    kind: str
    """in words"""
    default: str
    only: str
    """name of the choice that it is a setting of; empty: whatever is chosen"""
    description: str


def keys(schema: type[BaseModel], prefix: str = "", only: str = "") -> Iterator[Key]:
    """Every key that `schema` reads, in the order of its sections. Elements of a list are `data.sources[].path`."""
    for name, field in schema.model_fields.items():
        dotted, annotation = prefix + name, field.annotation
        inner, variants = section_of(annotation), variants_of(annotation)
        below = f"{dotted}[]." if get_origin(_present(annotation)) in (list, tuple) else f"{dotted}."
        if inner is not None and inner.model_fields and inner.__name__ != "Step":
            yield from keys(inner, below, only)
        elif variants:
            default = getattr(field.default, "name", None)
            yield Key(below + "name", " or ".join(variants), _written(default), only, field.description or "which kind")
            for variant, kind in variants.items():
                yield from (key for key in keys(kind, below, variant) if key.dotted != below + "name")
        else:
            default = "required" if field.is_required() else _written(field.get_default(call_default_factory=True))
            yield Key(dotted, _kind(annotation), default, only, field.description or "")


def keys_page() -> str:
    """Of `pretrain train`, in Markdown."""
    return f"""# Keys of training

Every key that `pretrain train CONFIG key=value ...` reads; this page is made from the code. A setting that is read only
under one name of a choice says so. Of a choice, the name alone is short for it: `model.positions=relative`.

{_tables(list(keys(RunConfig)))}"""


def build_page() -> str:
    """Of `pretrain data build`, in Markdown."""
    steps = [_table(name, list(keys(kind))) for name, kind in STEPS.items()]
    return f"""# Keys of data builds

Every key that `pretrain data build CONFIG key=value ...` reads, and the settings of each step; this page is made from
the code. What steps do: [data at scale](data.md#steps).

{_table("The build", list(keys(BuildConfig)))}
{"".join(steps)}"""


def _tables(found: list[Key]) -> str:
    sections: dict[str, list[Key]] = {}
    for key in found:
        sections.setdefault(key.dotted.split(".")[0].removesuffix("[]"), []).append(key)
    return "\n".join(_table(section, rows) for section, rows in sections.items())


def _table(title: str, rows: list[Key]) -> str:
    lines = [f"| {_code(k.dotted)} | {_cell(k.kind)} | {_cell(k.default)} | {_meaning(k)} |" for k in unique(rows)]
    return "\n".join([f"## {title}\n", "| Key | Value | By itself | Meaning |", "|---|---|---|---|", *lines, "", ""])


def unique(rows: list[Key]) -> list[Key]:
    """Keys that are the same under several names of a choice, once, with all those names."""
    names: dict[Key, list[str]] = {}
    for key in rows:
        names.setdefault(key._replace(only=""), []).append(key.only)
    return [key._replace(only=", ".join(filter(None, only))) for key, only in names.items()]


def _meaning(key: Key) -> str:
    return _cell(key.description + (f" ({key.only})" if key.only else ""))


def _kind(annotation: Any) -> str:
    annotation = _present(annotation)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return " or ".join(map(str, inner))
    if origin in (list, tuple):
        return f"list of: {_kind(inner[0])}"
    if origin is dict:
        return "mapping"
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(one) for one in inner if one is not types.NoneType)
    return _WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)).lower())


def _present(annotation: Any) -> Any:
    """Without None."""
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [one for one in get_args(annotation) if one is not types.NoneType]
        return kinds[0] if len(kinds) == 1 else annotation
    return annotation


def _written(value: Any) -> str:
    """As a config has it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value in ((), []) else str(value)


def _code(text: str) -> str:
    return f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
