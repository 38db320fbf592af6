"""ICU's break iterators, by the C library of the system, to hold our boundaries against."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from collections.abc import Iterator
from typing import Literal

import pytest

_KINDS = {"character": 0, "word": 1}
_DONE, _WORDS = -1, 100  # rule status of a word with letters or digits: from 100 on


def icu_pieces(text: str, kind: Literal["character", "word"], language: str) -> list[str]:
    """Graphemes, or words with a letter or digit, as ICU finds them. Skips the test where the library is absent."""
    name = ctypes.util.find_library("icuuc")
    if name is None or not (version := re.search(r"\.so\.(\d+)", name)):
        pytest.skip("ICU's C library (libicu) is not installed")
    library = ctypes.CDLL(name)
    opened, moved, status = (
        getattr(library, f"ubrk_{verb}_{version[1]}") for verb in ("open", "next", "getRuleStatus")
    )
    opened.restype = ctypes.c_void_p
    opened.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    moved.argtypes = status.argtypes = [ctypes.c_void_p]
    units = text.encode("utf-16-le")
    error = ctypes.c_int(0)
    found = opened(_KINDS[kind], language.encode(), units, len(units) // 2, ctypes.byref(error))
    assert error.value <= 0, error.value

    def pieces() -> Iterator[str]:
        begin = 0
        while (end := moved(found)) != _DONE:
            if kind == "character" or status(found) >= _WORDS:
                yield units[2 * begin : 2 * end].decode("utf-16-le")
            begin = end

    return list(pieces())
