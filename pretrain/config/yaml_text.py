"""Text of a config -> plain values. YAML 1.2, of a size and depth that a person writes: what is beyond is refused
before it can take the machine's memory or an hour."""

import os
import re
import stat
import sys
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

from pretrain.config.sentence import shown
from pretrain.errors import ConfigError

LARGEST_BYTES = 1 << 20
DEEPEST = 50
"""levels of mappings and lists in each other"""
MOST_VALUES = 100_000
"""with each alias written out"""
_UNREAD = re.compile("[\udc80-\udcff]")
"""characters that Python reads for bytes that are no text in the locale's encoding"""


def read_text(path: Path) -> str:
    """Raises ConfigError where `path` holds no text of a config."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path}: a config is a regular file, and this is a device or a pipe")
            content = file.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            raise ConfigError(f"{path}: a config file has at most {LARGEST_BYTES:,} bytes")
        return content.decode()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read as a config file ({said})") from None


def check_readable(argument: str, name: str) -> None:
    """Raises ConfigError for an argument of the command line whose bytes Python could not read as text."""
    if not _UNREAD.search(argument):
        return
    encoding = sys.getfilesystemencoding()
    if encoding.replace("-", "").lower() == "utf8":
        raise ConfigError(f"override {shown(name)} is not text in UTF-8: write it in UTF-8")
    variable = next((one for one in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(one)), "LC_ALL")
    raise ConfigError(
        f"override {shown(name)} has characters that the locale ({variable}="
        f"{os.environ.get(variable, '')}, {encoding}) cannot read: set {variable}=C.UTF-8"
    )


def _without_waiting(path: str, flags: int) -> int:
    """Opens a pipe at once, though nobody may ever write to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def parse(text: str, origin: str) -> Any:
    """Plain values; `origin` names the text in errors. Raises ConfigError for what is no YAML, or too much of it."""
    return deepcopy(_parsed(text, origin))


@lru_cache(maxsize=256)
def _parsed(text: str, origin: str) -> Any:
    """Kept, as programs that load many configs read the same files and overrides again and again."""
    try:
        _check_depth(text, origin)
        values = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{origin}{where}: not valid YAML ({getattr(error, 'problem', None) or error})") from None
    except (ValueError, ArithmeticError, LookupError, AssertionError) as error:  # of a number, a date or a tag
        why = "a number of thousands of digits" if "integer string conversion" in str(error) else error
        raise ConfigError(f"{origin}: not valid YAML ({why})") from None
    _check_size(values, origin)
    return values


def _check_depth(text: str, origin: str) -> None:
    """Looks at the text as a stream, in which nothing is nested or repeated yet."""
    depth = 0
    for event in YAML(typ="safe", pure=True).parse(text):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > DEEPEST:
            raise ConfigError(f"{origin}: more than {DEEPEST} levels of mappings and lists in each other")
        if isinstance(event, ScalarEvent) and event.value == "<<" and event.style is None:
            raise ConfigError(f"{origin}: YAML 1.2 has no merge key (<<): use `extends: other.yaml`")
        if isinstance(event, AliasEvent) and event.anchor is None:
            raise ConfigError(f"{origin}: not valid YAML (an alias without a name)")


def _check_size(values: Any, origin: str) -> None:
    """Aliases make few lines many values, and one of what it is in makes them endless."""
    waiting, seen = [(values, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if seen > MOST_VALUES or depth > DEEPEST:
            raise ConfigError(f"{origin}: with its aliases written out it has more than {MOST_VALUES:,} values")
        if isinstance(value, dict):
            waiting += [(one, depth + 1) for one in value.values()]
        elif isinstance(value, list | set | tuple):
            waiting += [(one, depth + 1) for one in value]
