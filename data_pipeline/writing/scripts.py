"""Unicode's properties of writing: scripts, as sets of the `regex` package (its version 1), and joiners."""

from __future__ import annotations

import unicodedata

import regex

LATIN = r"[\p{Latin}--[\uff21-\uff3a\uff41-\uff5a]]"
"""Letters of the Latin script, but the full-width ones, which are written among Han and kana."""
UNSPACED = (
    r"[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Bopomofo}\p{scx=Yi}\p{scx=Thai}\p{scx=Lao}\p{scx=Khmer}"
    r"\p{scx=Myanmar}\p{scx=Tibetan}]"
)
"""Characters of scripts that are written without spaces between words."""

JOINERS = "\u180e\u200c\u200d"
"""Invisible characters that spell words between some letters: the vowel separator of Mongolian, ZWNJ and ZWJ."""
WORD_BREAK = "\u200b"
"""A space of no width: a break between words of scripts without spaces, and where a line of others may break."""
_IDLE_BREAK = regex.compile(r"(?<=\p{lb=SA})(\u200b)\u200b*(?=\p{lb=SA})|\u200b+", regex.V1)
_JOINED_LETTERS = {
    "\u0d23\u0d4d": "\u0d7a",  # chillus of Malayalam (Unicode 5.1)
    "\u0d28\u0d4d": "\u0d7b",
    "\u0d30\u0d4d": "\u0d7c",
    "\u0d32\u0d4d": "\u0d7d",
    "\u0d33\u0d4d": "\u0d7e",
    "\u0d15\u0d4d": "\u0d7f",
    "\u09a4\u09cd": "\u09ce",  # khanda ta of Bengali and Assamese (Unicode 4.1)
}
"""Sequence that was written with a ZWJ behind it before Unicode had the letter -> the letter."""
_JOINED_LETTER = regex.compile(rf"({'|'.join(_JOINED_LETTERS)})\u200d+")
_CURSIVE = (
    r"[\p{scx=Arabic}\p{scx=Syriac}\p{scx=Mongolian}\p{scx=Nko}\p{scx=Mandaic}\p{scx=Adlam}\p{scx=Hanifi_Rohingya}]"
)
_LETTER = r"[\p{L}\p{M}\p{N}]"
_BEYOND_ASCII = r"[^\x00-\x7f\s\u200c\u200d]"
_SPELLING_JOINER = regex.compile(
    r"((?<=\p{ccc=9}\p{M}*)[\u200c\u200d]"  # behind a virama (RFC 5892, A.1 and A.2)
    rf"|(?<={_BEYOND_ASCII})[\u200c\u200d](?=[\u200c\u200d]*{_BEYOND_ASCII})"  # words, emoji
    rf"|(?<=[{_CURSIVE}&&{_LETTER}])[\u200c\u200d](?=[\u200c\u200d]*{_LETTER})"
    rf"|(?<={_LETTER})[\u200c\u200d](?=[\u200c\u200d]*[{_CURSIVE}&&{_LETTER}])"
    # Beside a letter that joins to that side, it shows another form of it.
    r"|(?<=[\p{jt=D}\p{jt=L}])\u200d|\u200d(?=[\u200c\u200d]*[\p{jt=D}\p{jt=R}])"
    r")[\u200c\u200d]*|[\u200c\u200d]+",
    regex.VERSION1,
)
_IDLE_SEPARATOR = regex.compile(
    r"(?<![\p{Mongolian}&&[\p{L}\p{M}]])\u180e|\u180e(?![\p{Mongolian}&&\p{L}])", regex.VERSION1
)


def without_idle_joiners(text: str) -> str:
    """`text` without the `JOINERS` that spell nothing, and with the letters that Unicode has for what was spelled with
    them. Of several in a row, the first stays."""
    text = str(_IDLE_SEPARATOR.sub("", text))
    text = str(_JOINED_LETTER.sub(lambda match: _JOINED_LETTERS[match[1]], text))
    return str(_SPELLING_JOINER.sub(r"\1", text))


def without_idle_breaks(text: str) -> str:
    """`text` with `WORD_BREAK` only between letters of scripts of South East Asia without spaces (Khmer, Thai, Lao,
    Burmese), one at a place."""
    return str(_IDLE_BREAK.sub(lambda match: match[1] or "", text))


def script_of(letter: str) -> str:
    """A name of the script of a letter: the first word of its Unicode name, such as LATIN, CJK, HIRAGANA, or nothing
    where it has no name."""
    return unicodedata.name(letter, "").partition(" ")[0]
