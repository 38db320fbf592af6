"""Unwrapping of hard-wrapped text into paragraphs of one line each.

A text counts as wrapped when most of its lines end where the next word would have exceeded the width (as a greedy
wrapper leaves them), and many continue in lower case; lists, verse and code do neither. Only such breaks are removed.
"""

from __future__ import annotations

import re

import numpy as np

_NARROWEST, _WIDEST = 40, 100
_LEAST_BREAKS = 3
_FULL_SHARE, _LOWER_SHARE = 0.6, 0.3  # of the breaks within paragraphs
_ITEM = re.compile(r"[-*\u2022+>|#]|\(?(?:[0-9]{1,3}|[A-Za-z])[.)]\s")


def unwrap(text: str) -> str:
    """The text without the line breaks of a wrapper; unchanged if it was not wrapped.

    A blank line, a line with more indentation than the previous one, and the mark of a list item begin a paragraph.
    """
    lines = [line.rstrip() for line in text.split("\n")]
    inner = np.array([n for n in range(len(lines) - 1) if _may_continue(lines[n], lines[n + 1])], np.int64)
    if len(inner) < _LEAST_BREAKS:
        return text
    ends = np.array([len(lines[n]) for n in inner])
    beyond = ends + 1 + np.array([len(lines[n + 1].split(None, 1)[0]) for n in inner])
    full: list[int] = max(
        (inner[(ends <= width) & (beyond > width)].tolist() for width in range(_NARROWEST, _WIDEST + 1)), key=len
    )
    if len(full) < max(_LEAST_BREAKS - 1, _FULL_SHARE * len(inner)):
        return text
    lower = sum(lines[n + 1].lstrip()[0].islower() for n in full)
    if lower < _LOWER_SHARE * len(full):
        return text
    joined, breaks = [lines[0]], frozenset(full)
    for number, line in enumerate(lines[1:]):
        if number in breaks:
            ends_in_hyphen = len(joined[-1]) > 1 and joined[-1][-1] == "-" and joined[-1][-2].isalpha()
            joined[-1] += ("" if ends_in_hyphen else " ") + line.lstrip()
        else:
            joined.append(line)
    return "\n".join(joined)


def _may_continue(line: str, following: str) -> bool:
    """Whether a line and the next may belong to one paragraph."""
    if not line or not following:
        return False
    inward = len(following) - len(following.lstrip()) > len(line) - len(line.lstrip())
    return not inward and not _ITEM.match(following.lstrip())
