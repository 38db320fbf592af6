"""Texts in one form, so that what is written alike in any script counts as equal: width, digits, case, punctuation."""

from __future__ import annotations

import unicodedata

import regex

from data_pipeline.writing.scripts import JOINERS, without_idle_joiners
from data_pipeline.writing.words import MARKS, UNSPACED_LETTER

PUNCTUATION = regex.compile(r"[\p{P}$+<=>^`|~]")
"""Punctuation of every script, and ASCII's symbols, which `string.punctuation` has too."""
_WIDTH_FORMS = regex.compile(r"[\u3000\uff01-\uffee]+")
_DIGITS_BEYOND_ASCII = regex.compile(r"[\p{Nd}--[0-9]]", regex.V1)
_NUMBER_MARKS = str.maketrans("\u066b\u066c", ".,")  # of Arabic digits
_SPACED_THOUSANDS = regex.compile(r"(?<=\p{Nd})[\u00a0\u2009\u202f](?=\p{Nd}{3}(?!\p{Nd}))")
_WORD_SEPARATORS = regex.compile(r"[\u0f0b\u0f0c\u1361]")  # of Tibetan and Ethiopic, which Unicode calls punctuation
_INVISIBLE = regex.compile(rf"[\p{{Cf}}--[{JOINERS}]]", regex.V1)  # marks of direction, soft hyphens, byte order marks
_LETTER = regex.compile(r"[\p{L}--[\p{Lm}\p{gcb=SM}]]", regex.V1)
_ALONE = regex.compile(rf"{UNSPACED_LETTER}(?:{MARKS}|[\u200c\u200d])*", regex.V1)


def one_form(text: str) -> str:
    """`text` in NFC, with full-width and half-width characters in their usual width, and with the digits of every
    script, and Arabic's marks between them, as 0 to 9, comma and point."""
    if text.isascii():
        return text
    text = _WIDTH_FORMS.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    text = _DIGITS_BEYOND_ASCII.sub(lambda match: str(unicodedata.decimal(match[0])), text.translate(_NUMBER_MARKS))
    return unicodedata.normalize("NFC", text)


def without_case(text: str, *, dotless: bool = False) -> str:
    """`text` by Unicode's full case folding, in which the i of U+0130 (I with a dot) has no second dot. `dotless`: as
    in Turkish and Azerbaijani, where I is the capital letter of U+0131 (i without a dot), and U+0130 that of i."""
    if dotless:
        text = unicodedata.normalize("NFC", text).replace("I", "\u0131").replace("\u0130", "i")
    return text.casefold().replace("i\u0307", "i")


def spaced(text: str) -> str:
    """`text` with spaces around each letter of a script that is written without spaces between words, so that words are
    what white space separates."""
    return text if text.isascii() else str(_ALONE.sub(r" \g<0> ", text))


def is_unspaced(text: str) -> bool:
    """Whether `text` has letters of a script that is written without spaces between words."""
    return not text.isascii() and _ALONE.search(text) is not None


def unspaced_letters(text: str) -> tuple[int, int]:
    """Letters of `text` of scripts that are written without spaces between words, and all of its letters."""
    letters = len(_LETTER.findall(text))
    return (0 if text.isascii() else len(_ALONE.findall(text))), letters


def folded(text: str, *, dotless: bool = False) -> str:
    """The words of `text`, with a space between them: in NFKC, without case (see `without_case`), punctuation, marks
    and spaces between thousands, and invisible characters that spell nothing; digits of every script are 0 to 9, and
    each letter of a script without spaces is a word."""
    text = unicodedata.normalize("NFKC", _SPACED_THOUSANDS.sub("", text))
    text = unicodedata.normalize("NFKC", without_case(one_form(text), dotless=dotless))
    text = without_idle_joiners(_INVISIBLE.sub("", text))
    return " ".join(spaced(PUNCTUATION.sub("", _WORD_SEPARATORS.sub(" ", text))).split())
