"""Unwrapping of hard-wrapped text into paragraphs of one line each.

A text counts as wrapped when most of its lines end where the next word would have exceeded the width (as a greedy
wrapper leaves them), and many continue in lower case; lists, verse and code do neither. In scripts without case, many
have to continue with a letter behind what is no end of a sentence. Only such breaks are removed.
"""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import regex

from data_pipeline.writing.ends import ends_sentence

_NARROWEST, _WIDEST = 40, 100
_LEAST_BREAKS = 3
_FULL_SHARE, _LOWER_SHARE = 0.6, 0.3  # of the breaks within paragraphs
_ITEM = re.compile(
    r"[-*\u2022+>|#\u30fb\u25cf\u25cb\u25a0\u25c6]|\(?(?:\d{1,3}|[^\W\d_])[.)]\s"
    r"|\uff08?[\d一二三四五六七八九十]{1,3}[\u3001\uff0e\uff09]"
)
_WIDE = r"[[\p{ea=W}\p{ea=F}]--\p{Hangul}]"  # Han, kana and their punctuation, which have no spaces between them
_IS_WIDE = regex.compile(_WIDE, regex.V1)
_FIRST_WORD = regex.compile(rf"{_WIDE}[\p{{Pe}}\p{{Pf}}\p{{Po}}\p{{Lm}}]*+|(?:(?!{_WIDE})\S)+", regex.V1)
_HANGS = regex.compile(rf"[{_WIDE}&&\p{{P}}]", regex.V1)  # beyond the width, where a wrapper lets punctuation do so
_WITHOUT_CASE = regex.compile(r"[\p{L}--[\p{Cased}\p{lb=SA}]]", regex.V1)


def unwrap(text: str) -> str:
    """The text without the line breaks of a wrapper; unchanged if it was not wrapped.

    A blank line, a line with more indentation than the previous one, and the mark of a list item begin a paragraph.
    """
    lines = [line.rstrip() for line in text.split("\n")]
    inner = np.array([n for n in range(len(lines) - 1) if _may_continue(lines[n], lines[n + 1])], np.int64)
    if len(inner) < _LEAST_BREAKS:
        return text
    ends = np.array([_width(lines[n]) for n in inner])
    hangs = np.array([2 * bool(_HANGS.match(lines[n][-1])) for n in inner])
    beyond = ends + np.array([len(_joint(lines[n], lines[n + 1])) + _width(_first_word(lines[n + 1])) for n in inner])
    full: list[int] = max(
        (inner[(ends - hangs <= width) & (beyond > width)].tolist() for width in range(_NARROWEST, _WIDEST + 1)),
        key=len,
    )
    if len(full) < max(_LEAST_BREAKS - 1, _FULL_SHARE * len(inner)):
        return text
    continued = sum(_continues(lines[n], lines[n + 1]) for n in full)
    if continued < _LOWER_SHARE * len(full):
        return text
    joined, breaks = [lines[0]], frozenset(full)
    for number, line in enumerate(lines[1:]):
        if number in breaks:
            ends_in_hyphen = len(joined[-1]) > 1 and joined[-1][-1] == "-" and joined[-1][-2].isalpha()
            joined[-1] += ("" if ends_in_hyphen else _joint(joined[-1], line)) + line.lstrip()
        else:
            joined.append(line)
    return "\n".join(joined)


def _continues(line: str, following: str) -> bool:
    """Whether a sentence continues from a line to the next: words of Thai, Lao, Khmer and Burmese don't show it."""
    first = following.lstrip()[0]
    return first.islower() or (_WITHOUT_CASE.match(first) is not None and not ends_sentence(line))


def _joint(line: str, following: str) -> str:
    """Text that a wrapper has taken out between two lines: a space, or nothing between letters that are written without
    spaces."""
    return "" if _IS_WIDE.match(line.rstrip(",.;:!?\"')")[-1:]) and _IS_WIDE.match(following.lstrip()[0]) else " "


def _first_word(line: str) -> str:
    """Part at the beginning of a line that a wrapper keeps together."""
    found = _FIRST_WORD.match(line.lstrip())
    assert found is not None  # lines are not blank
    return str(found[0])


def _width(text: str) -> int:
    """Columns of a terminal."""
    return len(text) if text.isascii() else sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _may_continue(line: str, following: str) -> bool:
    """Whether a line and the next may belong to one paragraph."""
    if not line or not following:
        return False
    inward = len(following) - len(following.lstrip()) > len(line) - len(line.lstrip())
    return not inward and not _ITEM.match(following.lstrip())
