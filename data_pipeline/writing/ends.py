"""Ends of lines and sentences, in any writing."""

from __future__ import annotations

import numpy as np
import regex

from data_pipeline.writing.boundaries import Boundaries

ELLIPSES = ("...", "…", "⋯", "。。。", "．．．", "・・・")
"""Ellipses of any language; Chinese writes two of the second or third."""
_ELLIPSIS = regex.compile(r"…{1,2}|⋯{1,2}|\.{3}|。{3}|．{3}|・{3}")
_QUOTE = r"[\"”“»«」』｣〞〟＂]"  # that close, in some language
_SENTENCE_END = regex.compile(rf"[\p{{STerm}}\u0f0d-\u0f11{_QUOTE}]", regex.V1)  # with Tibetan's shads
_PROSE_END = regex.compile(r"[[\p{Terminal_Punctuation}\p{Pf}\"')…⋯＂＇）」』｣»«“]--[\u0e5a\u0e5b]]", regex.V1)
_SIGNS = r"[\p{M}\p{Lm}\p{gcb=SM}\p{P}\p{S}\p{N}\s]"
_WITHOUT_TERMINALS = regex.compile(
    rf"[\p{{L}}&&[\p{{Thai}}\p{{Lao}}\p{{Tai_Viet}}]](?:(?!\p{{STerm}}){_SIGNS})*\Z", regex.V1
)


def count_ellipses(text: str) -> int:
    """Number of ellipses in a text."""
    return len(_ELLIPSIS.findall(text))


def ends_sentence(line: str) -> bool:
    """Whether a line that is not empty ends with a sentence terminal of any script, or a closing quotation mark."""
    return _SENTENCE_END.match(line[-1]) is not None


def ends_prose(line: str) -> bool:
    """Whether a line that is not empty ends with punctuation, as prose does and items of menus don't."""
    return _PROSE_END.match(line[-1]) is not None


def has_no_terminals(line: str) -> bool:
    """Whether a line ends in a script without sentence terminals: Thai, Lao, Tai Viet."""
    return not line.isascii() and _WITHOUT_TERMINALS.search(line) is not None


def count_sentences(text: str) -> int:
    """Number of sentences in a text: they end as those of `Boundaries` do, and with the text."""
    codes = np.frombuffer(f"{text}\n".encode("utf-32-le", "surrogatepass"), np.uint32)
    return int(Boundaries.of(codes).ends_sentence.sum()) if text else 0
