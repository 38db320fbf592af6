"""A tokenizer as it was released: its file, and what the files beside it say of where documents begin and end.

tokenizer_config.json, config.json and generation_config.json name the end of a *document*, in this order, by name or
id, often several. Where an instruct model's files name the end of a turn too, or only that, the end of a document is
the one that is no end of a turn. A begin is added where `add_bos_token` says so; where it is absent, by what the
tokenizer.json puts before a text; and a `bos_token` that is only named is not added.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.errors import DataError
from data_pipeline.tokenizers import gpt2
from data_pipeline.tokenizers.base import NO_END, Tokenizer
from data_pipeline.tokenizers.hf_json import DOCUMENT_ENDS, JsonTokenizer
from data_pipeline.tokenizers.load import open_tokenizer, read_content, tokenizer_file
from data_pipeline.tokenizers.recorded import RecordedTokenizer, record, special_id

SETTINGS, _MODEL, _GENERATION = "tokenizer_config.json", "config.json", "generation_config.json"
OFF = "off"
_JSON_BYTES = 2**26
_TURN = re.compile(r"turn|\beo[tm](_id)?\b|im_end|<\|(end|call|user|assistant|observation)\|>", re.IGNORECASE)
"""Names of the ends of a turn of a conversation."""


@dataclass(frozen=True)
class DocumentBounds:
    """Names of the special pieces that each text begins and ends with. None: what the tokenizer's files say."""

    begin: str | None = None
    """OFF: none."""
    end: str | None = None


AS_RELEASED = DocumentBounds()


@dataclass(frozen=True)
class ReleasedTokenizer:
    """A tokenizer, the bytes that datasets and checkpoints hold of it, and what a user should know of how it was
    read."""

    tokenizer: Tokenizer
    content: bytes
    notes: tuple[str, ...] = ()


def load_released(path: Path, bounds: DocumentBounds = AS_RELEASED) -> ReleasedTokenizer:
    """Reads what `load_tokenizer` reads, together with the files beside it; `bounds` go before what those say.

    Raises DataError where it can't be used, where nothing names an end, and for names that it lacks.
    """
    file = tokenizer_file(path)
    content = read_content(file)
    tokenizer = open_tokenizer(content, file, needs_end=False)
    if file.name in gpt2.VOCABULARIES and isinstance(tokenizer, JsonTokenizer):
        content = tokenizer.content  # which needs no second file
    return with_bounds(tokenizer, content, bounds, file)


def with_bounds(tokenizer: Tokenizer, content: bytes, bounds: DocumentBounds, file: Path) -> ReleasedTokenizer:
    """`tokenizer`, read from the bytes `content` of `file`, with the `bounds` given, or those that the files beside it
    say."""
    begin, end, notes = tokenizer.begin_of_text, tokenizer.end_of_text, list[str]()
    if isinstance(tokenizer, RecordedTokenizer):
        tokenizer, content = tokenizer.recorded, tokenizer.bare_content
    else:
        beside = {name: _json(file.parent / name) for name in (SETTINGS, _MODEL, _GENERATION)}
        if bounds.end is None:
            end = _end(tokenizer, beside, notes)
        if bounds.begin is None:
            begin = _begin(tokenizer, beside, notes)
    if bounds.begin is not None:
        begin = None if bounds.begin == OFF else special_id(tokenizer, bounds.begin, "begin")
    if bounds.end is not None:
        end = special_id(tokenizer, bounds.end, "end")
    if end == NO_END:
        raise DataError(
            f"{file} has none of the special pieces {', '.join(DOCUMENT_ENDS)}, and no file beside it names another "
            "end of a document: name it with tokenizer.end_of_text, or --end-of-text of an import."
        )
    found = record(tokenizer, content, begin, end)
    return ReleasedTokenizer(found, found.content if isinstance(found, RecordedTokenizer) else content, tuple(notes))


def _end(tokenizer: Tokenizer, beside: dict[str, dict[str, Any]], notes: list[str]) -> int:
    """The end of a document; NO_END: nothing names one."""
    special = tokenizer.special_pieces()
    names = {index: name for name, index in special.items()}
    named = [(file, name) for file in beside for name in _named(beside[file], "eos_token", names) if name in special]
    ends = [name for _, name in named if not _TURN.search(name)]
    if not named:
        return tokenizer.end_of_text
    if ends:
        chosen = next((name for name in ends if name in DOCUMENT_ENDS), ends[0])
    else:
        chosen = names.get(tokenizer.end_of_text, named[0][1])
    if {name for _, name in named} != {chosen}:
        said = "; ".join(f"{file} names {name}" for file, name in dict.fromkeys(named))
        notes.append(f"documents end with {chosen}: {said}")
    return special[chosen]


def _begin(tokenizer: Tokenizer, beside: dict[str, dict[str, Any]], notes: list[str]) -> int | None:
    """The id that each text begins with; None: there is none."""
    settings, special = beside[SETTINGS], tokenizer.special_pieces()
    before, after = (tokenizer.before, tokenizer.after) if isinstance(tokenizer, JsonTokenizer) else ([], [])
    names = {index: name for name, index in special.items()}
    stands = settings.get("add_bos_token")
    if isinstance(stands, bool):
        where = SETTINGS if "bos_token" in settings else _MODEL
        named = _named(beside[where], "bos_token", names)
        begin = next((special[name] for name in named if name in special), None) if stands else None
        if before and begin != before[0]:
            what = "no token" if begin is None else names[begin]
            notes.append(
                f"{SETTINGS} has add_bos_token: {str(stands).lower()}, so {what} begins a text, although "
                f"tokenizer.json puts {names.get(before[0], before[0])} before it"
            )
        return begin
    if not before or not settings or (after and _is_class(names.get(before[0], ""), settings, special)):
        return tokenizer.begin_of_text
    if before[0] not in names:
        raise DataError(f"The token {before[0]} that tokenizer.json puts before a text is no special token: repair it.")
    return before[0]


def _is_class(name: str, settings: dict[str, Any], special: dict[str, int]) -> bool:
    """Whether what begins a text, and has an end behind, is a token for classes, as of BERT and RoBERTa."""
    return name in (_text(settings.get("cls_token")), "[CLS]") or not special.keys().isdisjoint(("[MASK]", "<mask>"))


def _named(tree: dict[str, Any], key: str, names: dict[int, str]) -> list[str]:
    """Names of the special pieces that a file has under `key`, or the ids, one or a list, under `key`_id."""
    texts = tree.get("text_config")
    values: list[Any] = []
    for where in (tree, texts if isinstance(texts, dict) else {}):
        for value in (where.get(key), where.get(f"{key}_id")):
            values += value if isinstance(value, list) else [value]
    found = (names.get(value) if isinstance(value, int) else _text(value) for value in values)
    return list(dict.fromkeys(name for name in found if name is not None))


def _text(value: Any) -> str | None:
    """The text of a token: itself, or of an object that describes it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; an empty one where there is no file. Raises DataError for what can't be read."""
    if not path.is_file():
        return {}
    try:
        tree = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size <= _JSON_BYTES else None
    except (OSError, ValueError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        raise DataError(f"{path} cannot be read as a JSON object: copy it again.")
    return tree
