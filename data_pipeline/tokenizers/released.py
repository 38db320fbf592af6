"""A tokenizer as it was released: its file, and what the files beside it say of where documents begin and end.

tokenizer_config.json, config.json and generation_config.json name the end of a *document*, in this order, by name or
id, often several. Where an instruct model's files name the end of a turn too, or only that, the end of a document is
the one that is no end of a turn. A begin is added where `add_bos_token` says so; where it is absent, by what the
tokenizer.json puts before a text; and a `bos_token` that is only named is not added.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_pipeline.errors import DataError
from data_pipeline.tokenizers import gpt2
from data_pipeline.tokenizers.base import NO_END, Tokenizer
from data_pipeline.tokenizers.hf_json import DOCUMENT_ENDS, JsonTokenizer
from data_pipeline.tokenizers.load import load_tokenizer, open_tokenizer, read_content, tokenizer_file
from data_pipeline.tokenizers.recorded import RecordedTokenizer, record, special_id
from data_pipeline.tokenizers.settings import with_settings

SETTINGS, _MODEL, _GENERATION = "tokenizer_config.json", "config.json", "generation_config.json"
OFF = "off"
_BEGINS = ("<s>", "<bos>")
"""Begins by default, of transformers' classes that read a .model."""
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
    beside = {name: _json(file.parent / name) for name in (SETTINGS, _MODEL, _GENERATION)}
    settings = beside[SETTINGS]
    if settings is not None and content.lstrip()[:1] != b"{":
        applied = with_settings(content, file, settings, beside[_MODEL] or {})
        if applied is not None and applied.identity != tokenizer.identity:
            tokenizer, content = applied, applied.content
    notes: list[str] = []
    if isinstance(tokenizer, JsonTokenizer):
        tokenizer, content = _with_rows(tokenizer, content, beside[_MODEL] or {}, file, notes)
    found = _with_bounds(tokenizer, content, bounds, file, {name: tree or {} for name, tree in beside.items()})
    return replace(found, notes=(*notes, *found.notes))


def load_resumed(path: Path, recorded: Path | None) -> ReleasedTokenizer:
    """Reads as `load_released` does, but the file alone where a run `recorded` that, as runs did before the files
    beside it counted. Raises DataError as `load_released` does."""
    released = load_released(path)
    try:
        identity = None if recorded is None else load_tokenizer(recorded).identity
    except DataError:  # damaged: the run resumes from another checkpoint, whose data it compares
        identity = None
    if identity in (None, released.tokenizer.identity):
        return released
    content = read_content(tokenizer_file(path))
    bare = open_tokenizer(content, path, needs_end=False)
    return ReleasedTokenizer(bare, content) if bare.identity == identity else released


def _with_rows(
    tokenizer: JsonTokenizer, content: bytes, model: dict[str, Any], file: Path, notes: list[str]
) -> tuple[JsonTokenizer, bytes]:
    """Without special pieces that the model beside it has no rows for, as of pictures in Gemma 3's: no text encodes to
    them. Other pieces stay, so that whoever needs rows for them finds that there are none."""
    texts = model.get("text_config")
    rows = model.get("vocab_size", texts.get("vocab_size") if isinstance(texts, dict) else None)
    names = {index: name for name, index in tokenizer.special_pieces().items()}
    beyond = range(rows, tokenizer.vocabulary_size) if isinstance(rows, int) and rows > 0 else range(0)
    if not beyond or not all(index in names for index in beyond):
        return tokenizer, content
    tree = json.loads(content)
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["id"] < rows]
    if isinstance(pieces := tree["model"]["vocab"], dict):
        tree["model"]["vocab"] = {piece: index for piece, index in pieces.items() if index < rows}
    notes.append(f"{_MODEL} has {rows:,} rows, and none for {', '.join(names[index] for index in beyond)}: left out")
    content = json.dumps(tree, ensure_ascii=False).encode()
    return JsonTokenizer(content, str(file), needs_end=False), content


def _with_bounds(
    tokenizer: Tokenizer, content: bytes, bounds: DocumentBounds, file: Path, beside: dict[str, dict[str, Any]]
) -> ReleasedTokenizer:
    """`tokenizer`, read from the bytes `content` of `file`, with the `bounds` given, or those that the files beside it
    say."""
    begin, end, notes = tokenizer.begin_of_text, tokenizer.end_of_text, list[str]()
    if isinstance(tokenizer, RecordedTokenizer):
        content, tokenizer = tokenizer.bare_content, tokenizer.recorded
    else:
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
        said = [f"{file} names {', '.join(name for of, name in named if of == file)}" for file in dict(named)]
        notes.append(f"documents end with {chosen} ({'; '.join(said)})")
    return special[chosen]


def _begin(tokenizer: Tokenizer, beside: dict[str, dict[str, Any]], notes: list[str]) -> int | None:
    """The id that each text begins with; None: there is none."""
    settings, special = beside[SETTINGS], tokenizer.special_pieces()
    before, after = (tokenizer.before, tokenizer.after) if isinstance(tokenizer, JsonTokenizer) else ([], [])
    names = {index: name for name, index in special.items()}
    stands = settings.get("add_bos_token")
    if isinstance(stands, bool):
        named = _named(settings, "bos_token", names)
        if "bos_token" not in settings:
            named = [*_named(beside[_MODEL], "bos_token", names), *_BEGINS]
        begin = next((special[name] for name in named if name in special), None) if stands else None
        if begin in before:
            _check_one_begin(before, names)
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
    _check_one_begin(before, names)
    return before[0]


def _check_one_begin(before: list[int], names: dict[int, str]) -> None:
    """Raises DataError where several different tokens begin a text, of which documents here would have only one."""
    if len(set(before)) > 1:
        said = ", ".join(names.get(index, str(index)) for index in before)
        raise DataError(
            f"tokenizer.json puts {said} before a text, and a document begins with one token here: name it, or off, "
            "with tokenizer.begin_of_text, or --begin-of-text of an import."
        )


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


def _json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None: there is no file. Raises DataError for what can't be read."""
    if not path.is_file():
        return None
    try:
        tree = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size <= _JSON_BYTES else None
    except (OSError, ValueError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        raise DataError(f"{path} cannot be read as a JSON object: copy it again.")
    return tree
