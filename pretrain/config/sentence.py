"""Error in a config, as one sentence: which key, what is wrong, what is near."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from data_pipeline.common.problems import expected_kinds, problem_text
from data_pipeline.common.suggestions import close_matches, did_you_mean
from pretrain.config.keys import keys
from pretrain.config.section import section_of, variants_of

_SHOWN = 100  # characters of a key or a value
_ALIKE, _FAINTLY_ALIKE = 0.8, 0.5  # of difflib's ratio
_MOST = 3  # suggestions


def sentence(schema: type[BaseModel], error: ValidationError) -> str:
    """The first problem that `schema` has with a tree."""
    problem, *others = error.errors()
    key = _find(schema, problem["loc"])
    value = problem["input"]
    match problem["type"]:
        case "value_error":
            return problem_text(problem)
        case "missing" if problem["loc"] and isinstance(problem["loc"][-1], int):  # of a list of a fixed length
            dotted, count = key.dotted.rpartition(".")[0], len(value)
            return f"'{dotted}' = {shown(as_written(value))}: expected more than {count} item{'s' * (count != 1)}"
        case "missing":
            return f"'{key.dotted}' is required: set it in the file, or add {key.dotted}=VALUE to the command line"
        case "extra_forbidden":
            return _unknown(schema, key, value)
        case "union_tag_not_found":
            return f"'{key.dotted}.name' is required"
        case "union_tag_invalid":
            tag, names = str(problem["ctx"]["tag"])[:_SHOWN], [str(name) for name in variants_of(key.annotation)]
            hint = did_you_mean(map(repr, close_matches(tag, names, cutoff=_FAINTLY_ALIKE)))
            refusal = f"'{key.dotted}.name' = {tag!r}: expected one of {', '.join(names)}"
            return f"{refusal}: {hint}" if hint else refusal
    alike = [problem, *(one for one in others if _find(schema, one["loc"]).dotted == key.dotted)]
    return f"'{key.dotted}' = {shown(as_written(value))}: {expected_kinds(alike) or problem_text(problem)}"


def as_written(value: Any) -> str:
    """A value as a config has it: null, true and false, and texts in quotes."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {as_written(one)}' for name, one in value.items())}}}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return repr(value)


def shown(text: str) -> str:
    """A value as it is quoted in a sentence: a long one is cut short."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} ... ({len(text):,} characters)"


@dataclass(frozen=True)
class _Key:
    dotted: str
    """name in a config, with dots"""
    annotation: Any
    """type of its values"""
    section: type[BaseModel]
    """the class that it is looked for in"""
    variants: Mapping[str, type[BaseModel]]
    """classes of the choice that `section` is one of, by name; empty if there is no choice"""


def _find(schema: type[BaseModel], path: tuple[int | str, ...]) -> _Key:
    """The key that pydantic's `path` leads to, in which a choice's key is followed by the name of the chosen class."""
    dotted: list[str] = []
    section, variants = schema, cast("Mapping[str, type[BaseModel]]", {})
    annotation: Any = schema
    for part in path:
        choice = variants_of(annotation)
        if part in choice:
            annotation, variants = choice[str(part)], choice
            continue
        if _is_kind(annotation, part):
            continue
        dotted.append(str(part)[:_SHOWN])
        found = section_of(annotation)
        if found is None or isinstance(part, int):
            continue
        section, variants = found, variants if found in variants.values() else {}
        field = section.model_fields.get(part)
        annotation = None if field is None else field.annotation
    return _Key(".".join(dotted), annotation, section, variants)


def _is_kind(annotation: Any, part: int | str) -> bool:
    """Whether a part of pydantic's path to a plain value is no key but one of the kinds that it may have: `str`."""
    names = {"str", "int", "float", "bool", "date"}
    return isinstance(part, str) and _has_kinds(annotation) and (part in names or "[" in part)


def _has_kinds(annotation: Any) -> bool:
    """Whether plain values of a field, or those of its list, may be of several kinds."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    if get_origin(annotation) in (Union, UnionType) and len(kinds) > 1:
        return section_of(annotation) is None
    return get_origin(annotation) is not dict and any(map(_has_kinds, kinds))


def _unknown(schema: type[BaseModel], key: _Key, value: Any) -> str:
    """Sentence about a key that its section does not have."""
    parent, _, last = key.dotted.rpartition(".")
    under = ""
    if key.variants:
        name = key.section.model_fields["name"].default
        others = [other for other, kind in key.variants.items() if last in kind.model_fields]
        if others:
            written = str(value) if str(value).isprintable() else repr(value)
            refusal = f"{key.dotted}={shown(written)} does nothing with {parent}.name={name}: leave it out"
            return f"{refusal} (it is for {', '.join(others)})"
        under = f" with {parent}.name={name}"
    known = list(key.section.model_fields)
    near = _meant(schema, parent, last, known)
    hint = did_you_mean(map(repr, near), f"known here{under}: {', '.join(known)}")
    return f"unknown key '{key.dotted}': {hint}"


def _meant(schema: type[BaseModel], parent: str, last: str, known: list[str]) -> list[str]:
    """Keys that an unknown one may be a misspelling of, by the surest kind of likeness that there is: of its section, a
    key spelled alike or made of some of the words; of others, those of the same name; any that is spelled somewhat
    alike.
    """

    def in_section(names: list[str]) -> list[str]:
        return [f"{parent}.{name}" if parent else name for name in names]

    if near := close_matches(last, known, cutoff=_ALIKE):
        return in_section(near)
    words = set(last.split("_"))
    if shared := [name for name in known if words.issuperset(name.split("_")) or words.issubset(name.split("_"))]:
        return in_section(shared[:_MOST])
    everywhere = list(dict.fromkeys(key.dotted for key in keys(schema) if "[" not in key.dotted))
    names = {dotted: dotted.rpartition(".")[2] for dotted in everywhere}
    if same := sorted((dotted for dotted in everywhere if names[dotted] == last), key=lambda dotted: dotted.count(".")):
        return same[:_MOST]
    if near := close_matches(last, known, cutoff=_FAINTLY_ALIKE):
        return in_section(near)
    close = close_matches(last, names.values(), cutoff=_ALIKE)
    return [dotted for dotted in everywhere if names[dotted] in close][:_MOST]
